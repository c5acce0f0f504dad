// quantize_nvfp4 on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/kernels/cuda/quantize/orientation_amaxes.h"
#include "core/ops/block_quantize_checks.h"

namespace telens::cuda {
namespace {

using ops::BlockCodes;
using ops::BlockCodesPair;
using ops::SixTensors;

Nvfp4TensorScale get_tensor_scale(const at::Tensor& amax, const BlockCodes& codes) {
  return {amax.const_data_ptr<float>(),
          codes.tensor_scale.defined() ? codes.tensor_scale.mutable_data_ptr<float>() : nullptr,
          amax.numel()};
}

// The amaxes of the two orientations; they may be the same tensor.
struct BothAmaxes {
  at::Tensor rowwise;
  at::Tensor columnwise;
};

// Reads x [rows, columns], contiguous, once. Skips undefined orientations.
void quantize(const at::Tensor& x, FormatId format, const BlockCodesPair& codes,
              const BothAmaxes& amaxes, const std::optional<at::Tensor>& random_state, bool squares,
              const LaunchContext& context) {
  const Nvfp4Arguments arguments{
      as_matrix(x),
      {get_output<std::uint8_t>(codes.rowwise), get_output<std::uint8_t>(codes.columnwise)},
      get_tensor_scale(amaxes.rowwise, codes.rowwise),
      get_tensor_scale(amaxes.columnwise, codes.columnwise),
      random_state ? random_state->const_data_ptr<std::int64_t>() : nullptr,
      squares};
  check_launch("quantize_nvfp4", launch_quantize_nvfp4(arguments, format, context));
}

// Quantizes with a scale per row and a scale per column.
void quantize_by_lines(const at::Tensor& x, FormatId format, const BlockCodesPair& codes,
                       const LaunchContext& context) {
  const at::Tensor of_rows = ops::largest_numbers(x, 0);
  const at::Tensor of_columns =
      codes.columnwise.codes.defined() ? ops::largest_numbers(x, 1) : of_rows;
  const Nvfp4Arguments arguments{.matrix = as_matrix(x),
                                 .outputs = {get_output<std::uint8_t>(codes.rowwise),
                                             get_output<std::uint8_t>(codes.columnwise)},
                                 .rowwise = get_tensor_scale(of_rows, codes.rowwise),
                                 .columnwise = get_tensor_scale(of_columns, codes.columnwise),
                                 .random_state = nullptr,
                                 .squares = false,
                                 .by_lines = true};
  check_launch("quantize_nvfp4", launch_quantize_nvfp4(arguments, format, context));
}

SixTensors quantize_nvfp4_cuda(const at::Tensor& x, bool two_dimensional,
                               std::optional<std::int64_t> hadamard_signs,
                               const std::optional<at::Tensor>& given_random_state, bool rowwise,
                               bool columnwise, const std::optional<at::Tensor>& given_amaxes,
                               bool row_scaled) {
  ops::check_nvfp4(x, two_dimensional, hadamard_signs, given_random_state, columnwise, row_scaled);
  ops::check_amaxes("quantize_nvfp4", x, given_amaxes);
  ops::check_row_scaled("quantize_nvfp4", row_scaled, two_dimensional, given_amaxes);
  const FormatId format = ops::check_matrix("quantize_nvfp4", x);
  const DeviceScope scope("quantize_nvfp4", x);
  const at::Tensor contiguous = x.contiguous();
  const auto random_state =
      given_random_state ? std::optional(given_random_state->contiguous()) : std::nullopt;
  const OrientationAmaxes amaxes("quantize_nvfp4", given_amaxes, scope.context());
  const BlockCodesPair codes =
      ops::empty_packed_pair(x, two_dimensional, {rowwise, columnwise}, row_scaled);
  if (row_scaled) {
    quantize_by_lines(contiguous, format, codes, scope.context());
    return ops::as_six_tensors(codes);
  }

  const bool rotates = hadamard_signs && columnwise;
  if (rowwise || (columnwise && !rotates)) {
    const at::Tensor amax = amaxes.of(contiguous, format, 0);
    // As on the CPU: orientations that are quantized separately, with stochastic rounding, have
    // separate amaxes.
    const bool apart = random_state && !two_dimensional && amaxes.are_given();
    const BothAmaxes both{amax, apart ? amaxes.of(contiguous, format, 1) : amax};
    quantize(contiguous, format, {codes.rowwise, rotates ? BlockCodes() : codes.columnwise}, both,
             random_state, two_dimensional, scope.context());
  }
  if (rotates) {
    const at::Tensor rotated =
        ops::hadamard_transform(contiguous, static_cast<std::uint16_t>(*hadamard_signs));
    const at::Tensor amax = amaxes.of(rotated, format, 1);
    quantize(rotated, format, {{}, codes.columnwise}, {amax, amax}, random_state, false,
             scope.context());
  }
  return ops::as_six_tensors(codes);
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("quantize_nvfp4", TORCH_FN(telens::cuda::quantize_nvfp4_cuda));
}
