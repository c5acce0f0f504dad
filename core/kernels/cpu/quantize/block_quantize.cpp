// quantize_mxfp8, quantize_mxfp6, quantize_fp8_blocks and dequantize_blocks on the CPU.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/quantize/block_scales.h"
#include "core/kernels/cpu/quantize/block_tiles.h"
#include "core/kernels/cpu/quantize/fp8_ranges.h"
#include "core/ops/block_quantize.h"
#include "core/ops/checks.h"
#include "core/ops/quantize.h"

namespace telens::kernels {
namespace {

using ops::as_four_tensors;
using ops::BlockCodes;
using ops::BlockCodesPair;
using ops::FourTensors;

template <NanInMaximum nan>
FourTensors quantize_mx(const at::Tensor& x, FormatId input, ScalingMode mode,
                        const MxScaling<nan>& scaling, bool two_dimensional, bool rowwise,
                        bool columnwise) {
  if (!two_dimensional) {
    return as_four_tensors(quantize_blocks(x, input, mode, scaling, {rowwise, columnwise}));
  }
  const BlockCodes squares = quantize_squares(x, input, scaling);
  const auto& [codes, scales, none] = squares;
  BlockCodesPair pair;
  if (rowwise) {
    pair.rowwise = {codes, ops::repeat_scales(scales, scaling.kBlock, x.size(0)), {}};
  }
  if (columnwise) {
    pair.columnwise = {codes.t(), ops::repeat_scales(scales.t(), scaling.kBlock, x.size(1)), {}};
  }
  return as_four_tensors(pair);
}

FourTensors quantize_mxfp8(const at::Tensor& x, std::int64_t format, std::int64_t rounding,
                           bool two_dimensional, bool rowwise, bool columnwise) {
  const FormatId input = ops::check_matrix("quantize_mxfp8", x);
  const MxScaling<NanInMaximum::left_out> scaling{
      ops::check_fp8_format("quantize_mxfp8", format),
      ops::check_scale_rounding("quantize_mxfp8", rounding)};
  return quantize_mx(x, input, ScalingMode::mxfp8, scaling, two_dimensional, rowwise, columnwise);
}

FourTensors quantize_mxfp6(const at::Tensor& x, std::int64_t format, std::int64_t rounding,
                           bool two_dimensional, bool rowwise, bool columnwise) {
  const FormatId input = ops::check_matrix("quantize_mxfp6", x);
  const ScalingMode mode = ops::check_mxfp6_format("quantize_mxfp6", format);
  const MxScaling<NanInMaximum::wins> scaling{
      *scheme(mode).element, ops::check_scale_rounding("quantize_mxfp6", rounding)};
  return quantize_mx(x, input, mode, scaling, two_dimensional, rowwise, columnwise);
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

at::Tensor dequantize_blocks(const at::Tensor& given_codes, const at::Tensor& scale_inv,
                             const std::optional<at::Tensor>& tensor_scale, std::int64_t format,
                             std::int64_t mode, at::ScalarType dtype) {
  const auto [element, scaling] = ops::check_block_codes(
      "dequantize_blocks", {given_codes, scale_inv, tensor_scale.value_or(at::Tensor())}, format,
      mode);
  const FormatId output = ops::check_high_precision("dequantize_blocks", "the result", dtype);
  const at::Tensor codes = scheme(scaling).is_packed() ? unpack(given_codes) : given_codes;
  const bool transposed = ops::is_transposed(codes);
  const at::Tensor dense = transposed ? codes : codes.contiguous();
  at::Tensor values = ops::empty_values(dense, dtype);
  const at::Tensor of_blocks = decode_scales(scale_inv, scaling);
  const Scales scales(tensor_scale ? of_blocks.mul(tensor_scale->view({-1, 1})) : of_blocks);

  const std::int64_t lines = codes.size(transposed ? 1 : 0);
  const std::int64_t length = codes.size(transposed ? 0 : 1);
  const auto* const from = dense.const_data_ptr<std::uint8_t>();
  auto* const to = static_cast<std::byte*>(values.mutable_data_ptr());
  const auto width = static_cast<std::int64_t>(values.element_size());
  const std::int64_t grain = kGrain / std::max<std::int64_t>(1, length) + 1;
  at::parallel_for(0, lines, grain,
                   [&, element = element, scaling = scaling](std::int64_t begin, std::int64_t end) {
                     std::vector<float> of_elements(static_cast<std::size_t>(length));
                     for (std::int64_t line = begin; line < end; ++line) {
                       if (transposed) {
                         scales_along_column(scales, scaling, line, of_elements);
                       } else {
                         scales_along_row(scales, scaling, line, of_elements);
                       }
                       dequantize_range_by_scales(element, from + line * length, of_elements.size(),
                                                  of_elements.data(), output,
                                                  to + line * length * width);
                     }
                   });
  return values;
}

}  // namespace
}  // namespace telens::kernels

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("quantize_mxfp8", TORCH_FN(telens::kernels::quantize_mxfp8));
  library.impl("quantize_mxfp6", TORCH_FN(telens::kernels::quantize_mxfp6));
  library.impl("quantize_fp8_blocks", TORCH_FN(telens::kernels::quantize_fp8_blocks));
  library.impl("dequantize_blocks", TORCH_FN(telens::kernels::dequantize_blocks));
}
