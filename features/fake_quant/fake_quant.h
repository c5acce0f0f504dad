// FakeQuant: rounds a GEMM's operands to values of a low-precision format and runs the GEMM in high
// precision.
#pragma once

#include <array>
#include <optional>

#include "features/fake_quant/fake_quant_options.h"
#include "hooks/feature.h"

namespace telens::features {

// Casts x to the format, with a scale from x's own amax, and back. Rounds each value to x's dtype
// once. Accepts any shape.
at::Tensor fake_quantize(const at::Tensor& x, FormatId format);

// Like the function above, for the format of the options. A format with blocks depends on the
// tensor, for the shape of blocks, and on the GEMM: blocks are along the dimension that it sums
// over, or along rows for outputs. Throws ShapeError if the recipe with these blocks does not
// accept x.
at::Tensor fake_quantize(const at::Tensor& x, const FakeQuantOptions& options, Gemm gemm,
                         TensorName tensor);

class FakeQuant final : public ScheduledFeature {
 public:
  explicit FakeQuant(const config::FeatureEntry& entry);

  bool can_be_captured() const override { return true; }

  // Returns a plain tensor. The other operand of the GEMM is also plain, because the feature
  // disables the FP8 GEMM.
  Operand modify_tensor(const FeatureCall& at, const ModifyTensorCall& call) override;

 private:
  using OfTensors = std::array<std::optional<FakeQuantOptions>, kAllTensors.size()>;
  std::array<OfTensors, kAllGemms.size()> options_;
};

}  // namespace telens::features
