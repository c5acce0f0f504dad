// `statistics` and `accumulate_statistics` on CUDA: one read of the tensor, then one block merges
// all partial results.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/statistics/launchers.h"
#include "core/ops/checks.h"
#include "core/ops/statistics_checks.h"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {
namespace {

// Any dense layout is read without a copy; the kernel loads 16 bytes at a time.
at::Tensor dense_and_aligned(const at::Tensor& x) {
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  return is_aligned(dense.const_data_ptr(), 16) ? dense : dense.clone();
}

void read_tensor(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats,
                 at::Tensor& result, bool accumulate) {
  ops::check_statistics(x, scales, formats);
  const FormatId format = ops::check_high_precision("statistics", "x", x.scalar_type());
  const DeviceScope scope("statistics", x);
  const at::Tensor dense = dense_and_aligned(x);
  auto* const words = result.mutable_data_ptr<std::int64_t>();
  const auto casts = static_cast<std::int64_t>(scales.size());
  // A launch supports a few casts; more casts need more reads.
  for (std::int64_t first = 0; first == 0 || first < casts; first += kCastsOfLaunch) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kCastsOfLaunch, casts - first));
    const std::int64_t blocks = statistics_blocks(dense.numel());
    const at::Tensor parts = at::empty({blocks, part_words(count)}, result.options());
    StatisticsArguments arguments{
        dense.const_data_ptr(), dense.numel(), {}, count, parts.mutable_data_ptr<std::int64_t>()};
    for (int i = 0; i < count; ++i) {
      arguments.casts[i] = {static_cast<FormatId>(formats[first + i]),
                            scales[first + i].const_data_ptr<float>()};
    }
    check_launch("statistics", launch_statistics(arguments, format, scope.context()));
    check_launch("statistics", launch_merge_statistics(
                                   {arguments.parts, blocks, count, first == 0 ? words : nullptr,
                                    words + statistics_words(first), accumulate},
                                   scope.context()));
  }
}

at::Tensor statistics_cuda(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats) {
  at::Tensor result = at::empty({statistics_words(static_cast<std::int64_t>(scales.size()))},
                                x.options().dtype(at::kLong));
  read_tensor(x, scales, formats, result, false);
  return result;
}

void accumulate_statistics_cuda(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats,
                                at::Tensor& accumulator) {
  ops::check_accumulator("accumulate_statistics", x, accumulator,
                         statistics_words(static_cast<std::int64_t>(scales.size())));
  read_tensor(x, scales, formats, accumulator, true);
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("statistics", TORCH_FN(telens::cuda::statistics_cuda));
  library.impl("accumulate_statistics", TORCH_FN(telens::cuda::accumulate_statistics_cuda));
}
