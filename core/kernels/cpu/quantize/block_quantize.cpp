// quantize_mxfp8 and quantize_fp8_blocks on the CPU.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/quantize/block_scalings.h"
#include "core/kernels/cpu/quantize/block_tensors.h"
#include "core/ops/block_quantize_checks.h"
#include "core/ops/checks.h"

namespace telens::kernels {
namespace {

using ops::as_four_tensors;
using ops::BlockCodes;
using ops::BlockCodesPair;
using ops::FourTensors;

FourTensors quantize_mxfp8(const at::Tensor& x, std::int64_t format, std::int64_t rounding,
                           bool two_dimensional, bool rowwise, bool columnwise) {
  const FormatId input = ops::check_matrix("quantize_mxfp8", x);
  const Mxfp8Scaling scaling{ops::check_fp8_format("quantize_mxfp8", format),
                             ops::check_scale_rounding("quantize_mxfp8", rounding)};
  if (!two_dimensional) {
    return as_four_tensors(
        quantize_blocks(x, input, ScalingMode::mxfp8, scaling, {rowwise, columnwise}));
  }
  const BlockCodes squares = quantize_squares(x, input, scaling);
  const auto& [codes, scales, none] = squares;
  BlockCodesPair pair;
  if (rowwise) {
    pair.rowwise = {codes, ops::repeat_scales(scales, Mxfp8Scaling::kBlock, x.size(0)), {}};
  }
  if (columnwise) {
    pair.columnwise = {
        codes.t(), ops::repeat_scales(scales.t(), Mxfp8Scaling::kBlock, x.size(1)), {}};
  }
  return as_four_tensors(pair);
}

FourTensors quantize_fp8_blocks(const at::Tensor& x, std::int64_t format, bool two_dimensional,
                                bool power_of_2_scales, double amax_epsilon, bool rowwise,
                                bool columnwise) {
  const FormatId input = ops::check_matrix("quantize_fp8_blocks", x);
  const FormatId element = ops::check_fp8_format("quantize_fp8_blocks", format);
  const auto scaling =
      Fp8BlockScaling::of(element, input, power_of_2_scales, static_cast<float>(amax_epsilon));
  if (!two_dimensional) {
    return as_four_tensors(
        quantize_blocks(x, input, ScalingMode::block_1d, scaling, {rowwise, columnwise}));
  }
  const BlockCodes squares = quantize_squares(x, input, scaling);
  const BlockCodes transposed{squares.codes.t(), squares.scale_inv.t(), {}};
  return as_four_tensors(
      {rowwise ? squares : BlockCodes(), columnwise ? transposed : BlockCodes()});
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("quantize_mxfp8", TORCH_FN(telens::kernels::quantize_mxfp8));
  library.impl("quantize_fp8_blocks", TORCH_FN(telens::kernels::quantize_fp8_blocks));
}
