// `blockwise_dynamic_range` on the CPU: strides, threads, merging.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <vector>

#include "core/kernels/cpu/statistics/statistics_blocks.h"
#include "core/kernels/cpu/statistics/statistics_words.h"
#include "core/ops/capture.h"
#include "core/ops/statistics_checks.h"
#include "core/ops/statistics_layout.h"

namespace telens {
namespace {

// Elements that justify waking a thread.
constexpr std::int64_t kStripGrain = 1 << 16;

BlockRanges read_blocks(const at::Tensor& x, std::int64_t block_size, std::int64_t dims,
                        bool both_orientations) {
  ops::check_blockwise_dynamic_range(x, block_size, dims);
  BlockRanges whole;
  if (x.numel() == 0) return whole;
  const at::Tensor dense = x.contiguous();
  const std::int64_t columns = x.dim() == 0 ? 1 : x.size(-1);
  const std::int64_t rows = x.numel() / columns;
  const kernels::MatrixOfCodes matrix{kernels::get_format(x.scalar_type()), dense.const_data_ptr(),
                                      rows, columns};
  // The square blocks of the transposed matrix are the same. The block size is limited to the size
  // of the matrix, so that computations with a block size of 2^62 do not overflow.
  const kernels::BlockKinds kinds{std::min(block_size, std::max(rows, columns)), dims == 1,
                                  dims == 1 && both_orientations, dims == 2};

  const std::int64_t strips = (rows + kinds.size - 1) / kinds.size;
  const std::int64_t grain = std::max<std::int64_t>(1, kStripGrain / (kinds.size * columns));
  const std::int64_t count = (strips + grain - 1) / grain;
  std::vector<BlockRanges> parts(static_cast<std::size_t>(count));
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i * grain * kinds.size;
      const std::int64_t last = std::min(rows, first + grain * kinds.size);
      kernels::add_block_ranges(matrix, kinds, first, last, parts[static_cast<std::size_t>(i)]);
    }
  });
  for (const BlockRanges& part : parts) merge(whole, part);
  return whole;
}

at::Tensor blockwise_dynamic_range_cpu(const at::Tensor& x, std::int64_t block_size,
                                       std::int64_t dims, bool both_orientations) {
  const BlockRanges ranges = read_blocks(x, block_size, dims, both_orientations);
  at::Tensor result = at::empty({kBlockRangesWords}, at::kLong);
  kernels::store_words(ranges, result.mutable_data_ptr<std::int64_t>());
  return result;
}

void accumulate_blockwise_dynamic_range_cpu(const at::Tensor& x, std::int64_t block_size,
                                            std::int64_t dims, bool both_orientations,
                                            at::Tensor& accumulator) {
  ops::check_accumulator("accumulate_blockwise_dynamic_range", x, accumulator, kBlockRangesWords);
  if (ops::gate_is_shut()) return;
  kernels::merge_words(read_blocks(x, block_size, dims, both_orientations),
                       accumulator.mutable_data_ptr<std::int64_t>());
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("blockwise_dynamic_range", telens::blockwise_dynamic_range_cpu);
  library.impl("accumulate_blockwise_dynamic_range",
               telens::accumulate_blockwise_dynamic_range_cpu);
}
