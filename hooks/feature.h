// Base classes of features that see LibTorch's tensors, and may modify them.
#pragma once

#include <span>

#include "core/hook_points.h"
#include "hooks/observer.h"

namespace telens {

// A feature that receives the calls of core/hook_points.h.
class TELENS_EXPORT Feature : public Observer {
 public:
  // Returns the tensor that replaces call.tensor; an exception stops the run. If call.out is given,
  // the feature has to fill it, and the result is ignored. The default throws UsageError: a feature
  // that returns true from modify_tensor_enabled overrides it.
  virtual Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call);

  // These calls must not change anything. A feature that throws here is disabled for the session.
  virtual void inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                              TensorReading& reading) {}
  virtual void inspect_tensor_postquantize(const FeatureCall& at,
                                           const InspectPostquantizeCall& call) {}
  // `alterations`: the changes that features make to the three GEMMs of this forward-backward.
  virtual void inspect_gemm(const FeatureCall& at, const InspectGemmCall& call,
                            std::span<const Alteration> alterations) {}
  virtual void inspect_attention(const FeatureCall& at, const InspectAttentionCall& call) {}

  // Forward the session's calls to the functions above.
  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) final;
  void observe_copy(const FeatureCall& at, const ObservedCopy& call) final;
  void observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                    std::span<const Alteration> alterations) final;
  void observe_attention(const FeatureCall& at, const ObservedAttention& call) final;
};

// ScheduledObserver for features that see LibTorch's tensors.
class TELENS_EXPORT ScheduledFeature : public Scheduled<Feature> {
 protected:
  using Scheduled<Feature>::Scheduled;
};

}  // namespace telens
