// accumulate_block_cast_statistics on CUDA.
#include "core/ops/statistics_block_casts.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/statistics/cast_tensors.h"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

constexpr const char* kOperation = "accumulate_block_cast_statistics";

void accumulate(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scale_inv,
                const std::optional<at::Tensor>& tensor_scale, std::int64_t format,
                std::int64_t mode, at::Tensor& accumulator) {
  const ops::BlockCodes given{codes, scale_inv, tensor_scale.value_or(at::Tensor())};
  const FormatId input = ops::check_block_cast_statistics(x, given, format, mode, accumulator);
  check_same_device(kOperation, {x, given.scale_inv, given.tensor_scale});
  const DeviceScope scope(kOperation, x);
  if (x.numel() == 0) return;
  const auto scaling = static_cast<ScalingMode>(mode);
  const auto cast = CastInMemory::of(x, given, scaling);
  const std::int64_t blocks = block_cast_grid(cast.matrix);
  const at::Tensor words = at::empty({blocks, kCastSumsWords}, accumulator.options());
  auto* const parts = reinterpret_cast<CastSums*>(words.mutable_data_ptr<std::int64_t>());
  auto* const result = reinterpret_cast<CastSums*>(accumulator.mutable_data_ptr<std::int64_t>());
  check_launch(kOperation, launch_block_cast_statistics(
                               {cast.matrix, parts},
                               {input, static_cast<FormatId>(format), scaling}, scope.context()));
  check_launch(kOperation, launch_merge(MergeArguments<CastSums>{parts, blocks, result, true},
                                        scope.context()));
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("accumulate_block_cast_statistics", TORCH_FN(telens::cuda::accumulate));
}
