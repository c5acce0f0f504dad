// PerTensorScaling: current scaling of chosen tensors within delayed scaling.
#pragma once

#include "features/per_tensor_scaling/per_tensor_scaling_options.h"
#include "hooks/feature_registration.h"
#include "hooks/scheduled_feature.h"

namespace telens::features {

class PerTensorScaling final : public ScheduledFeature {
 public:
  explicit PerTensorScaling(const config::FeatureEntry& entry)
      : ScheduledFeature(entry, {.modify = true}) {}

  bool can_be_captured() const override { return true; }

  // The copy that the GEMM reads, quantized under the scale of the tensor's own amax, which the
  // default quantizer's history takes note of. Throws UsageError where that one does not scale by a
  // history.
  Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) override;
};

FeatureRegistration per_tensor_scaling();

}  // namespace telens::features
