// FP8 in 128-blocks: one scale per 1x128 elements (activations, gradients) or 128x128 (weights).
#pragma once

#include <memory>

#include "core/quantization/block_quantizer.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/recipe.h"

namespace telens {

struct TELENS_EXPORT Float8BlockScaling final : Recipe {
  Float8BlockScaling() {
    fp8_format = Fp8Format::e4m3;
    fp8_gemm_fprop = {.use_split_accumulator = true};
  }

  // By default scales are powers of 2.
  CurrentScalingOptions fp8_quant_fwd_inp = {.power_2_scale = true};
  CurrentScalingOptions fp8_quant_fwd_weight = {.power_2_scale = true};
  CurrentScalingOptions fp8_quant_bwd_grad = {.power_2_scale = true};
  // 1: 1x128 blocks; 2: 128x128. No GEMM multiplies two 128x128 operands, so at most one is 2.
  std::int64_t x_block_scaling_dim = 1;
  std::int64_t w_block_scaling_dim = 2;
  std::int64_t grad_block_scaling_dim = 1;

  std::string_view name() const override { return "fp8_block_scaling"; }
  // Throws UsageError for combinations that no GEMM supports.
  std::shared_ptr<Quantizer> make_quantizer(TensorRole role,
                                            DelayedScalingState* state) const override;
};

class TELENS_EXPORT Float8BlockQuantizer final : public BlockQuantizer {
 public:
  // block_scaling_dim: 1 or 2. Throws UsageError for any other.
  Float8BlockQuantizer(FormatId format, std::int64_t block_scaling_dim, BlockOptions options = {},
                       Usage usage = {});

  ScalingMode mode() const override { return mode_; }
  std::shared_ptr<Quantizer> copy() const override;

 private:
  ops::BlockCodesPair quantize_matrix(const at::Tensor& x,
                                      const ops::Orientations& orientations) const override;

  ScalingMode mode_;
};

}  // namespace telens
