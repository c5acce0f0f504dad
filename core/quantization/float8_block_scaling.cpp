#include "core/quantization/float8_block_scaling.h"

namespace telens {
namespace {

void check_dimensions(const Float8BlockScaling& recipe) {
  const bool squares[] = {recipe.x_block_scaling_dim == 2, recipe.w_block_scaling_dim == 2,
                          recipe.grad_block_scaling_dim == 2};
  if (squares[0] + squares[1] + squares[2] > 1) {
    raise<UsageError>(
        "Float8BlockScaling: x_block_scaling_dim, w_block_scaling_dim and grad_block_scaling_dim "
        "are {}, {} and {}; at most one may be 2, since no GEMM multiplies 128x128 blocks by "
        "128x128 blocks",
        recipe.x_block_scaling_dim, recipe.w_block_scaling_dim, recipe.grad_block_scaling_dim);
  }
}

}  // namespace

std::shared_ptr<Quantizer> Float8BlockScaling::make_quantizer(TensorRole role,
                                                              DelayedScalingState*) const {
  check_dimensions(*this);
  const bool weight = role == TensorRole::weight;
  const CurrentScalingOptions& scaling = is_backward(role) ? fp8_quant_bwd_grad
                                         : weight          ? fp8_quant_fwd_weight
                                                           : fp8_quant_fwd_inp;
  const std::int64_t dimension = is_backward(role) ? grad_block_scaling_dim
                                 : weight          ? w_block_scaling_dim
                                                   : x_block_scaling_dim;
  return std::make_shared<Float8BlockQuantizer>(
      get_format(role), dimension,
      BlockOptions{.power_of_2_scales = scaling.power_2_scale,
                   .amax_epsilon = scaling.amax_epsilon});
}

Float8BlockQuantizer::Float8BlockQuantizer(FormatId format, std::int64_t block_scaling_dim,
                                           BlockOptions options, Usage usage)
    : BlockQuantizer(format, options, usage),
      mode_(block_scaling_dim == 2 ? ScalingMode::block_2d : ScalingMode::block_1d) {
  if (block_scaling_dim != 1 && block_scaling_dim != 2) {
    raise<UsageError>("block_scaling_dim is {}; expected 1 (1x128 blocks) or 2 (128x128)",
                      block_scaling_dim);
  }
}

ops::BlockCodesPair Float8BlockQuantizer::quantize_matrix(
    const at::Tensor& x, const ops::Orientations& orientations) const {
  return ops::quantize_fp8_blocks(x, format(),
                                  {.two_dimensional = mode_ == ScalingMode::block_2d,
                                   .power_of_2_scales = options().power_of_2_scales,
                                   .amax_epsilon = options().amax_epsilon},
                                  orientations);
}

std::shared_ptr<Quantizer> Float8BlockQuantizer::copy() const {
  return std::make_shared<Float8BlockQuantizer>(*this);
}

}  // namespace telens
