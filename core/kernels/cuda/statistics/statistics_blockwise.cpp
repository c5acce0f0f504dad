// `blockwise_dynamic_range` on CUDA.
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
  library.impl("blockwise_dynamic_range", TORCH_FN(telens::cuda::blockwise_dynamic_range_cuda));
  library.impl("accumulate_blockwise_dynamic_range",
               TORCH_FN(telens::cuda::accumulate_blockwise_dynamic_range_cuda));
}
