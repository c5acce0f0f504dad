// MXFP8: blocks of 32 elements with a power-of-two scale (OCP Microscaling Formats 1.0).
#pragma once

#include <memory>

#include "core/quantization/block_quantizer.h"
#include "core/quantization/recipe.h"

namespace telens {

struct TELENS_EXPORT MXFP8BlockScaling final : Recipe {
  MXFP8BlockScaling() { fp8_format = Fp8Format::e4m3; }

  std::int64_t margin = 0;              // no effect, as in Transformer Engine
  bool enable_2d_quantization = false;  // weights: one scale for 32x32 elements

  std::string_view name() const override { return "mxfp8"; }
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

class TELENS_EXPORT MXFP8Quantizer final : public BlockQuantizer {
 public:
  explicit MXFP8Quantizer(FormatId format, BlockOptions options = {}, Usage usage = {})
      : BlockQuantizer(format, options, usage) {}

  ScalingMode mode() const override { return ScalingMode::mxfp8; }
  std::shared_ptr<Quantizer> copy() const override;

 private:
  ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                      const ops::Orientations& orientations) const override;
};

}  // namespace telens
