// PerTensorScaling: applies current scaling to selected tensors within delayed scaling.
#pragma once

#include "features/per_tensor_scaling/per_tensor_scaling_options.h"
#include "hooks/scheduled_feature.h"

namespace telens::features {

class PerTensorScaling final : public ScheduledFeature {
 public:
  explicit PerTensorScaling(const config::FeatureEntry& entry)
      : ScheduledFeature(entry, {.modify = true}) {}

  bool can_be_captured() const override { return true; }

  // Returns the copy that the GEMM reads, quantized with a scale from the tensor's own amax. The
  // default quantizer's history also records this amax. Throws UsageError if the default quantizer
  // does not scale by a history.
  Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) override;
};

}  // namespace telens::features
