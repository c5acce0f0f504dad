// quantize_mxfp8 and quantize_fp8_blocks on the CPU.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/block_tensors.h"
#include "core/kernels/cpu/quantize_range.h"
#include "core/ops/block_quantize_checks.h"
#include "core/ops/block_scale_formula.h"
#include "core/ops/checks.h"
#include "core/ops/scale_formula.h"

namespace telens::kernels {
namespace {

using ops::as_four_tensors;
using ops::BlockCodes;
using ops::BlockCodesPair;
using ops::FourTensors;

struct Mxfp8Scaling {
  using ScaleCode = std::uint8_t;
  static constexpr std::int64_t kBlock = block_length(ScalingMode::mxfp8);
  static constexpr NanInMaximum kNan = NanInMaximum::left_out;

  FormatId element;
  ScaleRounding rounding;

  BlockScale<ScaleCode> scale_of(float amax) const {
    const std::uint8_t code = element == FormatId::e4m3 ? mxfp8_scale<E4M3>(amax, rounding)
                                                        : mxfp8_scale<E5M2>(amax, rounding);
    return {code, mxfp8_factor(code)};
  }
  void encode(const Elements& x, const float* factors, std::uint8_t* codes) const {
    quantize_range_by_scales(x.format, x.data, x.size, factors, element, codes);
  }
};

struct Fp8BlockScaling {
  using ScaleCode = float;
  static constexpr std::int64_t kBlock = block_length(ScalingMode::block_1d);
  static constexpr NanInMaximum kNan = NanInMaximum::left_out;

  FormatId element;
  float fp8_max;
  float largest_scale;  // the largest value of x's dtype
  bool power_of_2_scales;
  float amax_epsilon;

  BlockScale<ScaleCode> scale_of(float amax) const {
    const float scale =
        current_scale(amax, fp8_max, amax_epsilon, power_of_2_scales, largest_scale);
    return {1.0F / scale, scale};
  }
  void encode(const Elements& x, const float* factors, std::uint8_t* codes) const {
    quantize_range_by_scales(x.format, x.data, x.size, factors, element, codes);
  }
};

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
  const Fp8BlockScaling scaling{
      element,
      dispatch_fp8_format(element, "quantize_fp8_blocks",
                          []<typename Format>() { return Format::kMax; }),
      dispatch_high_precision_format(input, "quantize_fp8_blocks",
                                     []<typename Format>() { return Format::kMax; }),
      power_of_2_scales, static_cast<float>(amax_epsilon)};
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
