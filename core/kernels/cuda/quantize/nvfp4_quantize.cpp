// quantize_nvfp4 and quantize_four_over_six on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <optional>
#include <string_view>

#include "core/kernels/cuda/blocks/block_tensors.h"
#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/ops/block_quantize.h"

namespace telens::cuda {
namespace {

using ops::BlockCodes;
using ops::BlockCodesPair;
using ops::SixTensors;

// The amaxes from which the scales of a tensor's two orientations are computed, on its device:
// the largest number of a tensor, FP32 [1], unless it is given for both orientations.
class OrientationAmaxes {
 public:
  OrientationAmaxes(std::string_view operation, const std::optional<at::Tensor>& given,
                    const LaunchContext& context)
      : operation_(operation),
        given_(given ? given->contiguous() : at::Tensor()),
        context_(context) {}

  // orientation: 0 rowwise, 1 columnwise.
  at::Tensor of(const at::Tensor& contiguous, FormatId format, std::int64_t orientation) const {
    if (given_.defined()) return given_.narrow(0, orientation, 1);
    at::Tensor amax = at::zeros({1}, contiguous.options().dtype(at::kFloat));
    check_launch(operation_,
                 launch_amax_of_numbers({contiguous.const_data_ptr(), contiguous.numel(),
                                         amax.mutable_data_ptr<float>()},
                                        format, context_));
    return amax;
  }
  bool are_given() const { return given_.defined(); }

 private:
  std::string_view operation_;
  at::Tensor given_;
  const LaunchContext& context_;
};

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

constexpr const char* kFourOverSix = "quantize_four_over_six";

four_over_six::Output get_four_over_six_output(const BlockCodes& codes) {
  if (!codes.codes.defined()) return {nullptr, nullptr};
  return {codes.codes.mutable_data_ptr<std::uint8_t>(),
          codes.scale_inv.mutable_data_ptr<std::uint8_t>()};
}

float* get_tensor_scale_output(const BlockCodes& codes) {
  return codes.codes.defined() ? codes.tensor_scale.mutable_data_ptr<float>() : nullptr;
}

ops::SixTensors quantize_four_over_six_cuda(const at::Tensor& x, bool two_dimensional,
                                            bool squared_error, double largest_scale, bool rowwise,
                                            bool columnwise,
                                            const std::optional<at::Tensor>& given_amaxes,
                                            bool row_scaled) {
  const FormatId format = ops::check_matrix(kFourOverSix, x);
  const FourOverSix choice = ops::check_four_over_six(largest_scale, squared_error);
  ops::check_amaxes(kFourOverSix, x, given_amaxes);
  ops::check_row_scaled(kFourOverSix, row_scaled, two_dimensional, given_amaxes);
  const DeviceScope scope(kFourOverSix, x);
  const at::Tensor contiguous = x.contiguous();
  const OrientationAmaxes amaxes(kFourOverSix, given_amaxes, scope.context());
  const auto pair = ops::empty_packed_pair(x, two_dimensional, {rowwise, columnwise}, row_scaled);
  const auto find_amaxes = [&](std::int64_t orientation) {
    return row_scaled ? ops::largest_numbers(contiguous, orientation)
                      : amaxes.of(contiguous, format, orientation);
  };
  const at::Tensor amax = find_amaxes(0);

  FourOverSixArguments arguments{contiguous.const_data_ptr(),
                                 {x.size(0), x.size(1)},
                                 {amax.const_data_ptr<float>(), row_scaled, choice},
                                 amax.numel(),
                                 get_tensor_scale_output(pair.rowwise),
                                 get_tensor_scale_output(pair.columnwise),
                                 get_four_over_six_output(pair.rowwise),
                                 get_four_over_six_output(pair.columnwise)};
  const auto launch = [&](FourOverSixBlocks blocks) {
    check_launch(kFourOverSix,
                 launch_quantize_four_over_six(arguments, blocks, format, scope.context()));
  };
  if (two_dimensional) {
    launch(FourOverSixBlocks::squares);
    return as_six_tensors(pair);
  }
  if (rowwise) {
    arguments.column_tensor_scale = nullptr;
    launch(FourOverSixBlocks::along_rows);
  }
  if (columnwise) {
    const at::Tensor of_columns = amaxes.are_given() || row_scaled ? find_amaxes(1) : amax;
    arguments.scales.amaxes = of_columns.const_data_ptr<float>();
    arguments.lines = of_columns.numel();
    arguments.tensor_scale = get_tensor_scale_output(pair.columnwise);
    arguments.column_tensor_scale = nullptr;
    arguments.output = get_four_over_six_output(pair.columnwise);
    launch(FourOverSixBlocks::down_columns);
  }
  return as_six_tensors(pair);
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("quantize_nvfp4", TORCH_FN(telens::cuda::quantize_nvfp4_cuda));
  library.impl("quantize_four_over_six", TORCH_FN(telens::cuda::quantize_four_over_six_cuda));
}
