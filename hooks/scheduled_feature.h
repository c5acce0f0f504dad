// Base of features that follow the configuration's schedule and selection: a subclass declares the
// calls that it makes and implements those.
#pragma once

#include "hooks/feature.h"

namespace telens {

class TELENS_EXPORT ScheduledFeature : public Feature {
 public:
  RoutingCalls routing_calls() const final;
  bool follows_schedules() const final { return true; }
  bool reads_statistics(TensorName tensor, std::int64_t iteration) const final;
  bool may_watch_wgrad() const final;
  RoutingAnswer fp8_gemm_enabled(const FeatureCall& at, Gemm gemm) final;
  RoutingAnswer modify_tensor_enabled(const FeatureCall& at, Gemm gemm, TensorName tensor) final;
  RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) final;
  RoutingAnswer inspect_tensor_postquantize_enabled(const FeatureCall& at, Gemm gemm,
                                                    TensorName tensor) final;
  RoutingAnswer inspect_gemm_enabled(const FeatureCall& at, Gemm gemm) final;
  RoutingAnswer inspect_attention_enabled(const FeatureCall& at) final;

 protected:
  // The calls that a feature uses for selected GEMMs and tensors, while they are due.
  struct Does {
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

  // The entry lives as long as the session's configuration.
  ScheduledFeature(const config::FeatureEntry& entry, Does does) : entry_(entry), does_(does) {}

  const config::FeatureEntry& entry() const { return entry_; }

  // Returns the selection that a call concerns; nullptr if none.
  const config::Selection* selection(std::optional<Gemm> gemm,
                                     std::optional<TensorName> tensor) const;

 private:
  RoutingAnswer answer(bool does, std::optional<Gemm> gemm, std::optional<TensorName> tensor,
                       std::int64_t iteration) const;

  const config::FeatureEntry& entry_;
  Does does_;
};

}  // namespace telens
