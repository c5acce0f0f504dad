// FakeQuant: the GEMM sees the values that a low-precision format can hold, and runs in high
// precision.
#pragma once

#include <array>
#include <optional>

#include "features/fake_quant_options.h"
#include "hooks/feature_registry.h"
#include "hooks/scheduled_feature.h"

namespace telens::features {

// x cast to the format, with a scale from x's own amax, and back; each value rounded to x's dtype
// once. Any shape.
at::Tensor fake_quantize(const at::Tensor& x, FormatId format);

class FakeQuant final : public ScheduledFeature {
 public:
  explicit FakeQuant(const config::FeatureEntry& entry);

  // Answers a plain tensor. The other operand of the GEMM is plain too: the feature switches the
  // FP8 GEMM off.
  Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) override;

 private:
  std::array<std::array<std::optional<FormatId>, kAllTensors.size()>, kAllGemms.size()> formats_;
};

FeatureRegistration fake_quant();

}  // namespace telens::features
