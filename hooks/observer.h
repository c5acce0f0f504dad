// Base classes of features, and the session's interface for them. A section of the configuration
// enables a feature for the layers that it selects. No LibTorch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layer_hooks.h"
#include "hooks/config/config.h"
#include "hooks/decisions.h"
#include "hooks/observation.h"
#include "hooks/sections.h"
#include "hooks/session_options.h"
#include "hooks/sink.h"
#include "hooks/statistics_engine.h"

namespace telens {

// The answer of a routing call. `enabled` holds for the requested iteration; next_iteration is the
// next one to ask in, or empty to never ask again. for_ever: set by a feature that alters operands
// in this iteration if it does so in all later ones too; only such an alteration can be captured
// into a graph.
struct RoutingAnswer {
  bool enabled = false;
  std::optional<std::int64_t> next_iteration = {};
  bool for_ever = false;

  static RoutingAnswer never() { return {false, std::nullopt}; }
  static RoutingAnswer always() { return {true, std::nullopt}; }
};

// The routing calls that a feature overrides; for all others it uses the contract's default.
struct RoutingCalls {
  bool fp8_gemm = true;
  bool modify = true;
  bool inspect = true;
  bool inspect_postquantize = true;
  bool inspect_gemm = false;       // TELens's own call, not in the contract
  bool inspect_attention = false;  // TELens's own call

  static RoutingCalls none() { return {false, false, false, false}; }
};

// The layer that calls, and when.
struct FeatureCall {
  std::string_view layer_name;
  std::int64_t iteration;
  // In GEMM calls: storage for data that the feature keeps from this forward until its backward. It
  // is empty at the start of every forward and destroyed with the forward's autograd graph; calls
  // of the same forward-backward never overlap. nullptr in routing calls.
  std::shared_ptr<void>* kept = nullptr;
};

// A change that a feature made to a GEMM.
struct Alteration {
  Gemm gemm;
  std::optional<TensorName> modified;  // empty if the feature returned false for fp8_gemm_enabled
  const config::FeatureEntry* by;
};

// The session's interface for its features. It outlives them.
class FeatureServices {
 public:
  virtual ~FeatureServices() = default;

  virtual StatisticsEngine& statistics() = 0;
  virtual SeriesTable& series() = 0;

  // The options that the session began with: log_dir, rank.
  virtual const debug::InitializeOptions& options() const = 0;

  // Records a feature's own value, which the next step() passes to the sinks. Any thread.
  virtual void record(const Row& row) = 0;

  // Like record(), for a histogram, and for rows of a table of record/rows, whose names are ids of
  // names(). These only go to the run file; scalars also go to the loggers.
  virtual void record_histogram(HistogramRow histogram) = 0;
  virtual void record_rows(const record::SomeRows& rows) = 0;
  template <typename TableRow>
  void record_row(const TableRow& row) {
    record_rows(std::span<const TableRow>(&row, 1));
  }
  record::NameTable& names() { return series().names(); }

  // The configuration of the session, and its switches.
  virtual const config::Config& config() const = 0;
  virtual SectionSwitches& sections() = 0;

  // Writes a WARNING message that is also an event of this kind in the run file. Only in step().
  virtual void announce(std::string_view kind, const std::string& text,
                        std::string_view layer_name) = 0;

  // Makes the running (or next) step() throw RunStopped with this text, after all earlier data is
  // in the run file. For features that stop a run on purpose; any thread.
  virtual void stop_run(std::string text) = 0;

  // Writes to the log, once per text and layer.
  virtual void log_message(std::string_view message, std::string_view layer_name,
                           debug::LogLevel level) = 0;
};

// A feature as the session calls it. An instance serves one entry of the configuration: all layers
// of its section. Calls may come from autograd's threads, several at a time; a feature with state
// has to lock it. The default bodies implement the contract's defaults.
//
// Derive from Observer to see tensors as handles, without LibTorch. Derive from Feature
// (hooks/feature.h) to see LibTorch's tensors or to modify them.
class TELENS_EXPORT Observer {
 public:
  virtual ~Observer() = default;

  // The session never makes the calls that are not listed here, so layers can sleep through them.
  virtual RoutingCalls routing_calls() const { return {}; }

  // Returns true if observe_tensor requests statistics of the tensor from its TensorReading in an
  // iteration in which the entry is due: ranks exchange them then. The answer may only depend on
  // the configuration, so that all ranks return the same.
  virtual bool reads_statistics(TensorName tensor, std::int64_t iteration) const {
    return routing_calls().inspect;
  }

  virtual RoutingAnswer fp8_gemm_enabled(const FeatureCall& at, Gemm gemm) {
    return RoutingAnswer::always();
  }
  virtual RoutingAnswer modify_tensor_enabled(const FeatureCall& at, Gemm gemm, TensorName tensor) {
    return RoutingAnswer::never();
  }
  virtual RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) {
    return RoutingAnswer::never();
  }
  virtual RoutingAnswer inspect_tensor_postquantize_enabled(const FeatureCall& at, Gemm gemm,
                                                            TensorName tensor) {
    return RoutingAnswer::never();
  }
  virtual RoutingAnswer inspect_gemm_enabled(const FeatureCall& at, Gemm gemm) {
    return RoutingAnswer::never();
  }
  // Called for attentions, which ask the feature only if looks_at_attention() is true.
  virtual RoutingAnswer inspect_attention_enabled(const FeatureCall& at) {
    return RoutingAnswer::never();
  }

  // These calls must not change anything. A feature that throws here is disabled for the session.
  virtual void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                              TensorReading& reading) {}
  virtual void observe_copy(const FeatureCall& at, const ObservedCopy& call) {}
  // `alterations`: the changes that features make to the three GEMMs of this forward-backward.
  virtual void observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                            std::span<const Alteration> alterations) {}
  virtual void observe_attention(const FeatureCall& at, const ObservedAttention& call) {}

  // Returns true if it may read or change the product of wgrad in any iteration. The default
  // derives this from the routing calls; a feature may override it. Layers that accumulate
  // gradients inside that GEMM continue to do so if it is false for all features.
  virtual bool may_watch_wgrad() const {
    const RoutingCalls calls = routing_calls();
    return calls.inspect || calls.modify || calls.inspect_gemm;
  }

  // The session calls it once, before the first of the calls above. A feature that reads schedules
  // passes the factor to them.
  void thin_by(const Thinning& thinning) { thinning_ = &thinning; }
  std::int64_t thinning_factor() const { return thinning_ == nullptr ? 1 : thinning_->factor(); }

  // Returns true if attentions have to ask the feature although its selections name none of their
  // tensors. By default, attentions only ask if a selection names one.
  virtual bool looks_at_attention() const { return false; }

  // Returns true if the entry's schedules define the due iterations; false if the feature defines
  // them itself.
  virtual bool follows_schedules() const { return false; }

  // Returns true if its calls may be made during graph capture (CUDA graphs) and not again at
  // replay. This holds for a feature that requests statistics from its TensorReading, or enqueues
  // operators, and neither reads values nor keeps state between calls. During a capture, observing
  // calls are also made if only a later iteration requires them.
  virtual bool can_be_captured() const { return false; }

  // Called if the model has a linear layer of another library under this name, whose GEMMs make no
  // calls; `kind` describes it. Only called for layers that the feature's section selects.
  virtual void note_foreign_layer(std::string_view layer_name, std::string_view kind) {}

  // Returns the feature itself if it decides for all ranks, else null.
  virtual Decider* decider() { return nullptr; }

  // Called at the end of an iteration, before its rows are passed to the sinks; and at the end of
  // the session.
  virtual void step(std::int64_t iteration) {}
  virtual void end() {}

 private:
  const Thinning* thinning_ = nullptr;  // the thinning of the section's budget
};

struct NamedValue {
  std::string name;
  double value;
};

// A feature that a script drives by debug.log_tensor_stats(), for tensors with custom names.
class TELENS_EXPORT ScriptDrivenFeature : public Observer {
 public:
  RoutingCalls routing_calls() const final { return RoutingCalls::none(); }

  // Returns the tensor's statistics in their order; empty if the tensor is not selected or not due,
  // which may only depend on the configuration and the iteration. With a group, the statistics are
  // computed over all its ranks' tensors.
  virtual std::vector<NamedValue> log_tensor(const FeatureCall& at, std::string_view tensor_name,
                                             const TensorHandle& tensor,
                                             const RankGroupPtr& group) = 0;
};

// Creates the instance for an entry; throws ConfigError for mistakes that the description could not
// detect.
using FeatureFactory = std::function<std::unique_ptr<Observer>(const config::FeatureEntry& entry,
                                                               FeatureServices& services)>;

// ---- features that follow the configuration's schedule and selection: a subclass declares the
// calls that it makes and implements those

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

// ---- the running iteration, decoded from the tick of the hook points

// Returns 0 without a session.
inline std::int64_t running_iteration() {
  const std::uint64_t tick = hook_points::current_tick.load(std::memory_order_relaxed);
  return static_cast<std::int64_t>(tick & hook_points::kLastIteration);
}

// ---- exceptions of features; hooks/libtorch/feature.cpp implements these functions

// Returns the message of the current exception, without a backtrace.
std::string message_of_current_exception();

// Rethrows the current exception with the context prepended to its message and the original nested
// in it. Types derived from telens::Error are preserved; interruptions are rethrown unchanged.
[[noreturn]] void rethrow_with_context(const std::string& context);

}  // namespace telens
