// The device code of blockwise dynamic ranges, run on the host thread by thread, against the CPU's
// kernel, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "core/kernels/cpu/statistics/statistics_ranges.h"
#include "core/kernels/cuda/statistics/statistics_blocks.cuh"
#include "tests/core/cuda/host_data.h"
#include "tests/core/cuda/host_grid.h"

namespace telens::testing {
namespace {

using BlockRangesShared = cuda::MergeShared<BlockRanges>;

template <typename Format>
void expect_ranges(const Aligned<typename Format::Bits>& x, std::int64_t rows,
                   const kernels::BlockKinds& kinds, Order order) {
  const std::int64_t columns = static_cast<std::int64_t>(x.size()) / rows;
  constexpr std::int64_t kGrid = 3;
  std::vector<BlockRanges> parts(kGrid);
  run_grid<BlockRangesShared>(
      kGrid, order, [&](const HostThread& thread, BlockRangesShared& shared) {
        cuda::block_ranges<Format>({x.data(), rows, columns, kinds.size, kinds.of_rows,
                                    kinds.of_columns, kinds.squares, parts.data()},
                                   thread, shared);
      });
  BlockRanges actual{7, 1, 3.0};  // an accumulator that is not empty
  run_grid<BlockRangesShared>(1, order, [&](const HostThread& thread, BlockRangesShared& shared) {
    cuda::merge_parts<BlockRanges>({parts.data(), kGrid, &actual, true}, thread, shared);
  });
  BlockRanges expected;
  kernels::add_block_ranges({Format::kId, x.data(), rows, columns}, kinds, 0, rows, expected);
  EXPECT_EQ(actual.blocks, expected.blocks + 7);
  EXPECT_EQ(actual.nan_blocks, expected.nan_blocks + 1);
  EXPECT_EQ(actual.max_ratio, std::max(expected.max_ratio, 3.0));
}

template <typename Format>
void expect_ranges_of_every_kind() {
  for (const Order order : kOrders) {
    for (const auto& x :
         {random_codes<Format>(70 * 101), codes_with_special_values<Format>(70 * 101),
          Aligned<typename Format::Bits>(70 * 101, 0)}) {
      expect_ranges<Format>(x, 70, {32, true, false, false}, order);
      expect_ranges<Format>(x, 70, {16, true, true, false}, order);
      expect_ranges<Format>(x, 70, {32, false, false, true}, order);
      expect_ranges<Format>(x, 101, {101, true, true, false}, order);
    }
  }
}

TEST(BlockRangesDevice, bf16_matches_cpu) { expect_ranges_of_every_kind<BF16>(); }
TEST(BlockRangesDevice, fp16_matches_cpu) { expect_ranges_of_every_kind<FP16>(); }
TEST(BlockRangesDevice, fp32_matches_cpu) { expect_ranges_of_every_kind<FP32>(); }

}  // namespace
}  // namespace telens::testing
