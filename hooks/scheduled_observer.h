// Base of features that follow the configuration's schedule and selection: a subclass declares the
// calls that it makes and implements those. No LibTorch.
#pragma once

#include "hooks/observer.h"

namespace telens {

// The calls that a feature uses for selected GEMMs and tensors, while they are due.
struct ScheduledCalls {
  bool modify = false;
  bool inspect = false;
  // inspect_tensor queries its TensorReading; false saves ranks a collective
  bool read_statistics = true;
  bool inspect_postquantize = false;
  bool disable_fp8_gemm = false;
  bool inspect_gemm = false;
  bool look_at_products = true;  // in inspect_gemm; false if it only reads how they were computed
  bool inspect_attention = false;
};

// The answers to routing calls that follow from an entry of the configuration.
class TELENS_EXPORT ScheduledAnswers {
 public:
  // The entry lives as long as the session's configuration.
  ScheduledAnswers(const config::FeatureEntry& entry, ScheduledCalls calls)
      : entry_(entry), calls_(calls) {}

  const config::FeatureEntry& entry() const { return entry_; }
  const ScheduledCalls& calls() const { return calls_; }

  // Returns the selection that a call concerns; nullptr if none.
  const config::Selection* selection(std::optional<Gemm> gemm,
                                     std::optional<TensorName> tensor) const;

  // Returns the answer for the selected GEMM and tensor. `makes_call`: the feature makes this call
  // at all. `factor`: Observer::thinning_factor().
  RoutingAnswer answer(bool makes_call, std::optional<Gemm> gemm, std::optional<TensorName> tensor,
                       std::int64_t iteration, std::int64_t factor) const;

  RoutingCalls routing_calls() const;
  bool may_watch_wgrad() const;

 private:
  const config::FeatureEntry& entry_;
  ScheduledCalls calls_;
};

// Base: Observer or Feature.
template <typename Base>
class Scheduled : public Base {
 public:
  RoutingCalls routing_calls() const final { return answers_.routing_calls(); }
  bool follows_schedules() const final { return true; }
  bool reads_statistics(TensorName tensor, std::int64_t iteration) const final {
    const bool reads = answers_.calls().inspect && answers_.calls().read_statistics;
    return answer(reads, std::nullopt, tensor, iteration).enabled;
  }
  bool may_watch_wgrad() const final { return answers_.may_watch_wgrad(); }
  // A False holds until its next_iteration, so while a switch is off, ask again in the next
  // iteration.
  RoutingAnswer fp8_gemm_enabled(const FeatureCall& at, Gemm gemm) final {
    const RoutingAnswer off =
        answer(answers_.calls().disable_fp8_gemm, gemm, std::nullopt, at.iteration);
    if (!off.enabled) return {true, off.next_iteration};
    return {false, at.iteration + 1, off.for_ever};
  }
  RoutingAnswer modify_tensor_enabled(const FeatureCall& at, Gemm gemm, TensorName tensor) final {
    return answer(answers_.calls().modify, gemm, tensor, at.iteration);
  }
  RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) final {
    return answer(answers_.calls().inspect, std::nullopt, tensor, at.iteration);
  }
  RoutingAnswer inspect_tensor_postquantize_enabled(const FeatureCall& at, Gemm gemm,
                                                    TensorName tensor) final {
    return answer(answers_.calls().inspect_postquantize, gemm, tensor, at.iteration);
  }
  RoutingAnswer inspect_gemm_enabled(const FeatureCall& at, Gemm gemm) final {
    return answer(answers_.calls().inspect_gemm, gemm, std::nullopt, at.iteration);
  }
  RoutingAnswer inspect_attention_enabled(const FeatureCall& at) final {
    return answer(answers_.calls().inspect_attention, std::nullopt, std::nullopt, at.iteration);
  }

 protected:
  using Does = ScheduledCalls;

  Scheduled(const config::FeatureEntry& entry, Does does) : answers_(entry, does) {}

  const config::FeatureEntry& entry() const { return answers_.entry(); }
  const config::Selection* selection(std::optional<Gemm> gemm,
                                     std::optional<TensorName> tensor) const {
    return answers_.selection(gemm, tensor);
  }

 private:
  RoutingAnswer answer(bool makes_call, std::optional<Gemm> gemm, std::optional<TensorName> tensor,
                       std::int64_t iteration) const {
    return answers_.answer(makes_call, gemm, tensor, iteration, this->thinning_factor());
  }

  ScheduledAnswers answers_;
};

using ScheduledObserver = Scheduled<Observer>;

}  // namespace telens
