// quantize_mxfp8, quantize_fp8_blocks and dequantize_blocks on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/ops/block_quantize.h"
#include "core/ops/checks.h"

namespace telens::cuda {
namespace {

using ops::as_four_tensors;
using ops::BlockCodes;
using ops::BlockCodesPair;
using ops::FourTensors;
using ops::Orientations;

template <typename ScaleCode>
BlockOutputs<ScaleCode> get_outputs(const BlockCodesPair& pair) {
  return {get_output<ScaleCode>(pair.rowwise), get_output<ScaleCode>(pair.columnwise)};
}

// The tensors that a kernel writes and the requested ones. With squares, the orientations share
// memory (core/kernels/cuda/quantize/block_quantize.cuh).
struct Codes {
  BlockCodesPair written;
  BlockCodesPair result;
};

Codes empty_lines(const at::Tensor& x, ScalingMode mode, at::ScalarType scale_dtype,
                  const Orientations& orientations) {
  const BlockCodesPair pair = ops::empty_block_codes(x, mode, scale_dtype, orientations);
  return {pair, pair};
}

Codes empty_mxfp8_squares(const at::Tensor& x, const Orientations& orientations) {
  const auto scales = [&](std::int64_t lines, std::int64_t length) {
    const std::int64_t blocks = ops::rounded_up_quotient(length, block_length(ScalingMode::mxfp8));
    return at::empty({lines, blocks}, x.options().dtype(at::kByte));
  };
  Codes squares;
  squares.written.rowwise.codes = at::empty(x.sizes(), x.options().dtype(at::kByte));
  if (orientations.rowwise) {
    squares.written.rowwise.scale_inv = scales(x.size(0), x.size(1));
    squares.result.rowwise = squares.written.rowwise;
  }
  if (orientations.columnwise) {
    squares.written.columnwise.scale_inv = scales(x.size(1), x.size(0));
    squares.result.columnwise = {
        squares.written.rowwise.codes.t(), squares.written.columnwise.scale_inv, {}};
  }
  return squares;
}

Codes empty_fp8_squares(const at::Tensor& x, const Orientations& orientations) {
  Codes squares;
  squares.written = ops::empty_block_codes(x, ScalingMode::block_2d, at::kFloat, {true, false});
  const BlockCodes& codes = squares.written.rowwise;
  if (orientations.rowwise) squares.result.rowwise = codes;
  if (orientations.columnwise) {
    squares.result.columnwise = {codes.codes.t(), codes.scale_inv.t(), {}};
  }
  return squares;
}

FourTensors quantize_mxfp8_cuda(const at::Tensor& x, std::int64_t format, std::int64_t rounding,
                                bool two_dimensional, bool rowwise, bool columnwise) {
  const FormatId input = ops::check_matrix("quantize_mxfp8", x);
  const FormatId output = ops::check_fp8_format("quantize_mxfp8", format);
  const ScaleRounding scale_rounding = ops::check_scale_rounding("quantize_mxfp8", rounding);
  const DeviceScope scope("quantize_mxfp8", x);
  const at::Tensor contiguous = x.contiguous();
  const Orientations orientations{rowwise, columnwise};
  const Codes codes = two_dimensional ? empty_mxfp8_squares(x, orientations)
                                      : empty_lines(x, ScalingMode::mxfp8, at::kByte, orientations);
  check_launch("quantize_mxfp8", launch_quantize_mxfp8({as_matrix(contiguous),
                                                        get_outputs<std::uint8_t>(codes.written),
                                                        scale_rounding, two_dimensional},
                                                       input, output, scope.context()));
  return as_four_tensors(codes.result);
}

FourTensors quantize_fp8_blocks_cuda(const at::Tensor& x, std::int64_t format, bool two_dimensional,
                                     bool power_of_2_scales, double amax_epsilon, bool rowwise,
                                     bool columnwise) {
  const FormatId input = ops::check_matrix("quantize_fp8_blocks", x);
  const FormatId output = ops::check_fp8_format("quantize_fp8_blocks", format);
  const DeviceScope scope("quantize_fp8_blocks", x);
  const at::Tensor contiguous = x.contiguous();
  const Orientations orientations{rowwise, columnwise};
  const Codes codes = two_dimensional
                          ? empty_fp8_squares(x, orientations)
                          : empty_lines(x, ScalingMode::block_1d, at::kFloat, orientations);
  check_launch("quantize_fp8_blocks",
               launch_quantize_fp8_blocks(
                   {as_matrix(contiguous), get_outputs<float>(codes.written), power_of_2_scales,
                    static_cast<float>(amax_epsilon), two_dimensional},
                   input, output, scope.context()));
  return as_four_tensors(codes.result);
}

at::Tensor dequantize_blocks_cuda(const at::Tensor& codes, const at::Tensor& scale_inv,
                                  const std::optional<at::Tensor>& given_tensor_scale,
                                  std::int64_t format, std::int64_t mode, at::ScalarType dtype) {
  const at::Tensor tensor_scale = given_tensor_scale.value_or(at::Tensor());
  const auto [element, scaling] =
      ops::check_block_codes("dequantize_blocks", {codes, scale_inv, tensor_scale}, format, mode);
  const FormatId output = ops::check_high_precision("dequantize_blocks", "the result", dtype);
  check_same_device("dequantize_blocks", {codes, scale_inv, tensor_scale});
  const DeviceScope scope("dequantize_blocks", codes);

  const auto memory = CodesInMemory::of(codes);
  const CodedMatrix matrix = coded_matrix(memory, scale_inv, tensor_scale, scaling);
  const at::Tensor values = at::empty({matrix.rows, matrix.columns}, codes.options().dtype(dtype));
  check_launch("dequantize_blocks",
               launch_dequantize_blocks({matrix, values.mutable_data_ptr()}, element, scaling,
                                        output, scope.context()));
  return memory.transposed ? values.t() : values;
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("quantize_mxfp8", TORCH_FN(telens::cuda::quantize_mxfp8_cuda));
  library.impl("quantize_fp8_blocks", TORCH_FN(telens::cuda::quantize_fp8_blocks_cuda));
  library.impl("dequantize_blocks", TORCH_FN(telens::cuda::dequantize_blocks_cuda));
}
