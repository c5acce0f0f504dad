// FakeQuant: the GEMM sees the values that a low-precision format can hold, and runs in high
// precision.
#pragma once

#include <array>
#include <optional>

#include "features/fake_quant/fake_quant_options.h"
#include "hooks/feature_registration.h"
#include "hooks/scheduled_feature.h"

namespace telens::features {

// x cast to the format, with a scale from x's own amax, and back; each value rounded to x's dtype
// once. Any shape.
at::Tensor fake_quantize(const at::Tensor& x, FormatId format);

// The same to the format of the options, of which one in blocks wants to know the tensor, for the
// shape of blocks, and the GEMM: they lie along the dimension that it sums over, of outputs along
// rows. Throws ShapeError where the recipe with these blocks could not take x.
at::Tensor fake_quantize(const at::Tensor& x, const FakeQuantOptions& options, Gemm gemm,
                         TensorName tensor);

class FakeQuant final : public ScheduledFeature {
 public:
  explicit FakeQuant(const config::FeatureEntry& entry);

  bool can_be_captured() const override { return true; }

  // Answers a plain tensor. The other operand of the GEMM is plain too: the feature switches the
  // FP8 GEMM off.
  Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) override;

 private:
  using OfTensors = std::array<std::optional<FakeQuantOptions>, kAllTensors.size()>;
  std::array<OfTensors, kAllGemms.size()> options_;
};

FeatureRegistration fake_quant();

}  // namespace telens::features
