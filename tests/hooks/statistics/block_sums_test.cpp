// Statistics over blocks, and which blocks are the worst ones.
#include "hooks/statistics/accumulator.h"

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

namespace telens {
namespace {

std::vector<std::int64_t> get_rows(const WorstBlocks& blocks) {
  std::vector<std::int64_t> rows;
  for (const WorstBlock& each : blocks.list()) rows.push_back(each.place.row);
  return rows;
}

WorstBlocks find_worst(std::size_t k, const std::vector<double>& values) {
  WorstBlocks blocks(k);
  std::int64_t row = 0;
  for (const double value : values) blocks.add({value, {row++, 0}});
  return blocks;
}

TEST(WorstBlocks, are_the_first_with_the_largest_errors_and_nan_above_all) {
  EXPECT_THAT(get_rows(find_worst(3, {1, 5, 2, 5, 4})), ::testing::ElementsAre(1, 3, 4));
  EXPECT_THAT(get_rows(find_worst(2, {3, NAN, INFINITY, NAN, NAN})), ::testing::ElementsAre(1, 3));
}

TEST(WorstBlocks, fewer_than_k_contain_all_blocks_with_an_error) {
  EXPECT_THAT(get_rows(find_worst(8, {0, 2, 0, 1})), ::testing::ElementsAre(1, 3));
  EXPECT_THAT(get_rows(find_worst(0, {1, NAN})), ::testing::IsEmpty());
}

TEST(BlockSums, count_zero_and_smallest_scale_blocks_separately) {
  BlockSums sums(1);
  sums.add({.elements = 4, .nonzero = 0}, 0, ScalingMode::mxfp8, {});
  sums.add({.elements = 4, .nonzero = 1}, 0, ScalingMode::mxfp8, {});
  sums.add({.elements = 4, .nonzero = 1}, 0, ScalingMode::mxfp8, {});
  sums.add({.elements = 4, .nonzero = 1}, 254, ScalingMode::mxfp8, {});
  EXPECT_THAT(sums.values(), ::testing::ElementsAre(25, 50, 25, 0, 0, 0, 0));
  EXPECT_EQ(sums.scales()[0], 3);
}

TEST(BlockSums, use_the_largest_scale_of_the_format) {
  for (const auto& [mode, bin] : {std::pair(ScalingMode::mxfp8, 254),
                                  {ScalingMode::nvfp4, 126},
                                  {ScalingMode::block_1d, 254},
                                  {ScalingMode::block_2d, 254}}) {
    BlockSums sums;
    sums.add({.elements = 1, .nonzero = 1}, static_cast<std::size_t>(bin), mode, {});
    sums.add({.elements = 1, .nonzero = 1}, static_cast<std::size_t>(bin) - 1, mode, {});
    sums.add({.elements = 1, .nonzero = 1}, static_cast<std::size_t>(bin) + 1, mode, {});  // a NaN
    EXPECT_DOUBLE_EQ(sums.values()[2], 100.0 / 3) << get_name(mode);
  }
}

TEST(BlockSums, take_shares_of_the_elements_that_a_block_has) {
  BlockSums sums(4);
  sums.add({.elements = 8, .nonzero = 1, .underflows = 2, .saturated = 1, .squared_error = 16}, 127,
           ScalingMode::mxfp8, {0, 0});
  // The last block of a row.
  sums.add({.elements = 2, .nonzero = 1, .underflows = 2, .saturated = 0, .squared_error = 16}, 127,
           ScalingMode::mxfp8, {0, 1});
  EXPECT_THAT(sums.values(), ::testing::ElementsAre(0, 0, 0, 100, 62.5, 12.5, 6.25));
  EXPECT_EQ(sums.by_mse().list().front().value, 8);
  EXPECT_EQ(sums.by_mse().list().front().place, (BlockPlace{0, 1}));
  EXPECT_EQ(sums.by_underflows().list().front().value, 100);
}

}  // namespace
}  // namespace telens
