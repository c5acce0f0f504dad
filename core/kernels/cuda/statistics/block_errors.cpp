// The comparison of a matrix with its block cast on CUDA: accumulate_block_cast_statistics,
// block_cast_errors and block_copies_difference.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/statistics/cast_tensors.h"
#include "core/kernels/cuda/statistics/launchers.h"
#include "core/ops/block_errors.h"
#include "core/ops/statistics.h"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {
namespace {

constexpr const char* kBlockCastStatistics = "accumulate_block_cast_statistics";

void accumulate_block_cast_statistics_cuda(const at::Tensor& x, const at::Tensor& codes,
                                           const at::Tensor& scale_inv,
                                           const std::optional<at::Tensor>& tensor_scale,
                                           std::int64_t format, std::int64_t mode,
                                           at::Tensor& accumulator) {
  const ops::BlockCodes given{codes, scale_inv, tensor_scale.value_or(at::Tensor())};
  const FormatId input = ops::check_block_cast_statistics(x, given, format, mode, accumulator);
  check_same_device(kBlockCastStatistics, {x, given.scale_inv, given.tensor_scale});
  const DeviceScope scope(kBlockCastStatistics, x);
  if (x.numel() == 0) return;
  const auto scaling = static_cast<ScalingMode>(mode);
  const auto cast = CastInMemory::of(x, given, scaling);
  const std::int64_t blocks = block_cast_grid(cast.matrix);
  const at::Tensor words = at::empty({blocks, kCastSumsWords}, accumulator.options());
  auto* const parts = reinterpret_cast<CastSums*>(words.mutable_data_ptr<std::int64_t>());
  auto* const result = reinterpret_cast<CastSums*>(accumulator.mutable_data_ptr<std::int64_t>());
  check_launch(
      kBlockCastStatistics,
      launch_block_cast_statistics(
          {cast.matrix, parts}, {input, static_cast<FormatId>(format), scaling}, scope.context()));
  check_launch(
      kBlockCastStatistics,
      launch_merge(MergeArguments<CastSums>{parts, blocks, result, true}, scope.context()));
}

at::Tensor block_cast_errors_cuda(const at::Tensor& x, const at::Tensor& codes,
                                  const at::Tensor& scale_inv,
                                  const std::optional<at::Tensor>& tensor_scale,
                                  std::int64_t format, std::int64_t mode) {
  constexpr const char* kOperation = "block_cast_errors";
  const ops::BlockCodes given{codes, scale_inv, tensor_scale.value_or(at::Tensor())};
  const FormatId input = ops::check_block_cast(kOperation, x, given, format, mode);
  check_same_device(kOperation, {x, given.scale_inv, given.tensor_scale});
  const DeviceScope scope(kOperation, x);
  // Zeros, since a matrix without elements writes no block.
  at::Tensor words = at::zeros({scale_inv.size(0), scale_inv.size(1), kBlockErrorsWords},
                               x.options().dtype(at::kLong));
  const auto scaling = static_cast<ScalingMode>(mode);
  const auto cast = CastInMemory::of(x, given, scaling);
  check_launch(kOperation, launch_block_cast_errors(block_errors_arguments(cast, scaling, words),
                                                    {input, static_cast<FormatId>(format), scaling},
                                                    scope.context()));
  return words;
}

struct CudaCopies {
  static at::Tensor compare(const ops::BlockCast& rowwise, const ops::BlockCast& columnwise,
                            std::optional<std::int64_t> hadamard_signs);
};

at::Tensor CudaCopies::compare(const ops::BlockCast& rowwise, const ops::BlockCast& columnwise,
                               std::optional<std::int64_t> hadamard_signs) {
  constexpr const char* kOperation = "block_copies_difference";
  const at::Tensor& codes = rowwise.codes.codes;
  const at::Tensor& column_codes = columnwise.codes.codes;
  check_same_device(kOperation,
                    {codes, rowwise.codes.scale_inv, rowwise.codes.tensor_scale, column_codes,
                     columnwise.codes.scale_inv, columnwise.codes.tensor_scale});
  const DeviceScope scope(kOperation, codes);
  at::Tensor result = at::zeros({kCopiesDifferenceWords}, codes.options().dtype(at::kLong));
  if (codes.size(0) == 0 || column_codes.size(0) == 0) return result;
  at::Tensor values;
  if (hadamard_signs) {
    values = ops::without_transform(columnwise, codes.size(0), *hadamard_signs);
  }
  auto copies = CopiesInMemory::of(rowwise.codes, columnwise.codes, rowwise.mode, values);
  const std::int64_t blocks = copies_grid(copies.arguments.rows, copies.arguments.columns);
  const at::Tensor words = at::empty({blocks, kCopiesDifferenceWords}, result.options());
  auto* const parts = reinterpret_cast<CopiesDifference*>(words.mutable_data_ptr<std::int64_t>());
  copies.arguments.parts = parts;
  check_launch(kOperation, launch_copies_difference(copies.arguments, rowwise.format, rowwise.mode,
                                                    scope.context()));
  auto* const whole = reinterpret_cast<CopiesDifference*>(result.mutable_data_ptr<std::int64_t>());
  check_launch(
      kOperation,
      launch_merge(MergeArguments<CopiesDifference>{parts, blocks, whole, true}, scope.context()));
  return result;
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("accumulate_block_cast_statistics",
               TORCH_FN(telens::cuda::accumulate_block_cast_statistics_cuda));
  library.impl("block_cast_errors", TORCH_FN(telens::cuda::block_cast_errors_cuda));
  library.impl("block_copies_difference",
               TORCH_FN(telens::ops::block_copies_difference_by<telens::cuda::CudaCopies>));
}
