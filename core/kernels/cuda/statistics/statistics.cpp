// statistics, central moments and blockwise_dynamic_range on CUDA: one read of the tensor, then one
// block merges all partial results.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/statistics/launchers.h"
#include "core/ops/checks.h"
#include "core/ops/statistics.h"
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

CentralMoments* moments_in(const at::Tensor& words, std::int64_t first) {
  return reinterpret_cast<CentralMoments*>(words.mutable_data_ptr<std::int64_t>() + first);
}

void accumulate_central_moments_cuda(const at::Tensor& x, at::Tensor& accumulator) {
  constexpr const char* kName = "accumulate_central_moments";
  ops::check_central_moments(x, accumulator);
  const FormatId format = ops::check_high_precision(kName, "x", x.scalar_type());
  const DeviceScope scope(kName, x);
  const at::Tensor dense = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  const std::int64_t blocks = central_moments_blocks(dense.numel());
  const at::Tensor parts = at::empty({blocks, kMomentsWords}, accumulator.options());
  CentralMoments* const of_blocks = moments_in(parts, 0);
  check_launch(kName, launch_central_moments({dense.const_data_ptr(), dense.numel(), of_blocks},
                                             format, scope.context()));
  check_launch(kName, launch_merge(
                          MergeArguments<CentralMoments>{
                              of_blocks, blocks, moments_in(accumulator, kOnePassWords), true},
                          scope.context()));
}

BlockRanges* ranges_in(const at::Tensor& words) {
  return reinterpret_cast<BlockRanges*>(words.mutable_data_ptr<std::int64_t>());
}

void read_blocks(const at::Tensor& x, std::int64_t block_size, std::int64_t dims,
                 bool both_orientations, const at::Tensor& result, bool accumulate) {
  ops::check_blockwise_dynamic_range(x, block_size, dims);
  const FormatId format =
      ops::check_high_precision("blockwise_dynamic_range", "x", x.scalar_type());
  const DeviceScope scope("blockwise_dynamic_range", x);
  const at::Tensor dense = x.contiguous();
  const std::int64_t columns = x.dim() == 0 ? 1 : x.size(-1);
  const std::int64_t rows = x.numel() == 0 ? 0 : x.numel() / columns;
  // The square blocks of the transposed matrix are the same. The block size is limited to the size
  // of the matrix, so that computations with a block size of 2^62 do not overflow.
  const std::int64_t size = std::min(block_size, std::max<std::int64_t>({rows, columns, 1}));
  const at::Tensor parts = at::empty({kBlockRangesGrid, kBlockRangesWords}, result.options());
  check_launch("blockwise_dynamic_range",
               launch_block_ranges({dense.const_data_ptr(), rows, columns, size, dims == 1,
                                    dims == 1 && both_orientations, dims == 2, ranges_in(parts)},
                                   format, scope.context()));
  check_launch("blockwise_dynamic_range",
               launch_merge({ranges_in(parts), kBlockRangesGrid, ranges_in(result), accumulate},
                            scope.context()));
}

at::Tensor blockwise_dynamic_range_cuda(const at::Tensor& x, std::int64_t block_size,
                                        std::int64_t dims, bool both_orientations) {
  at::Tensor result = at::empty({kBlockRangesWords}, x.options().dtype(at::kLong));
  read_blocks(x, block_size, dims, both_orientations, result, false);
  return result;
}

void accumulate_blockwise_dynamic_range_cuda(const at::Tensor& x, std::int64_t block_size,
                                             std::int64_t dims, bool both_orientations,
                                             at::Tensor& accumulator) {
  ops::check_accumulator("accumulate_blockwise_dynamic_range", x, accumulator, kBlockRangesWords);
  read_blocks(x, block_size, dims, both_orientations, accumulator, true);
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("statistics", TORCH_FN(telens::cuda::statistics_cuda));
  library.impl("accumulate_statistics", TORCH_FN(telens::cuda::accumulate_statistics_cuda));
  library.impl("accumulate_central_moments",
               TORCH_FN(telens::cuda::accumulate_central_moments_cuda));
  library.impl("blockwise_dynamic_range", TORCH_FN(telens::cuda::blockwise_dynamic_range_cuda));
  library.impl("accumulate_blockwise_dynamic_range",
               TORCH_FN(telens::cuda::accumulate_blockwise_dynamic_range_cuda));
}
