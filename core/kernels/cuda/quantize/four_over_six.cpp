// quantize_four_over_six on CUDA.
#include "core/ops/four_over_six.h"

#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/kernels/cuda/quantize/orientation_amaxes.h"
#include "core/ops/block_quantize_checks.h"

namespace telens::cuda {
namespace {

using ops::BlockCodes;

constexpr const char* kOperation = "quantize_four_over_six";

four_over_six::Output get_output(const BlockCodes& codes) {
  if (!codes.codes.defined()) return {nullptr, nullptr};
  return {codes.codes.mutable_data_ptr<std::uint8_t>(),
          codes.scale_inv.mutable_data_ptr<std::uint8_t>()};
}

float* get_scale(const BlockCodes& codes) {
  return codes.codes.defined() ? codes.tensor_scale.mutable_data_ptr<float>() : nullptr;
}

ops::SixTensors quantize_four_over_six_cuda(const at::Tensor& x, bool two_dimensional,
                                            bool squared_error, double largest_scale, bool rowwise,
                                            bool columnwise,
                                            const std::optional<at::Tensor>& given_amaxes,
                                            bool row_scaled) {
  const FormatId format = ops::check_matrix(kOperation, x);
  const FourOverSix choice = ops::check_four_over_six(largest_scale, squared_error);
  ops::check_amaxes(kOperation, x, given_amaxes);
  ops::check_row_scaled(kOperation, row_scaled, two_dimensional, given_amaxes);
  const DeviceScope scope(kOperation, x);
  const at::Tensor contiguous = x.contiguous();
  const OrientationAmaxes amaxes(kOperation, given_amaxes, scope.context());
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
                                 get_scale(pair.rowwise),
                                 get_scale(pair.columnwise),
                                 get_output(pair.rowwise),
                                 get_output(pair.columnwise)};
  const auto launch = [&](FourOverSixBlocks blocks) {
    check_launch(kOperation,
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
    arguments.tensor_scale = get_scale(pair.columnwise);
    arguments.column_tensor_scale = nullptr;
    arguments.output = get_output(pair.columnwise);
    launch(FourOverSixBlocks::down_columns);
  }
  return as_six_tensors(pair);
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("quantize_four_over_six", TORCH_FN(telens::cuda::quantize_four_over_six_cuda));
}
