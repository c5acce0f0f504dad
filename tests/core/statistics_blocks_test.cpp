// The blockwise dynamic range against its definition, on every SIMD target of this processor.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/kernels/cpu/simd_target.h"
#include "core/ops/statistics.h"
#include "core/ops/statistics_layout.h"
#include "hooks/statistics/accumulator.h"
#include "tests/core/statistics_checks.h"

namespace telens {
namespace {

using namespace ops;  // the operators under test

BlockRanges typed(const at::Tensor& words) {
  return from_words<BlockRanges>({words.const_data_ptr<std::int64_t>(), kBlockRangesWords});
}

// Element by element. `matrix` is [rows, columns] in double.
BlockRanges reference(const at::Tensor& matrix, std::int64_t height, std::int64_t width) {
  const auto at = matrix.accessor<double, 2>();
  BlockRanges ranges;
  for (std::int64_t top = 0; top < at.size(0); top += height) {
    for (std::int64_t left = 0; left < at.size(1); left += width) {
      double amax = 0, smallest = std::numeric_limits<double>::infinity();
      bool has_nan = false;
      for (std::int64_t i = top; i < std::min(top + height, at.size(0)); ++i) {
        for (std::int64_t j = left; j < std::min(left + width, at.size(1)); ++j) {
          const double magnitude = std::fabs(at[i][j]);
          has_nan |= std::isnan(magnitude);
          amax = std::max(amax, magnitude);
          if (magnitude > 0) smallest = std::min(smallest, magnitude);
        }
      }
      ++ranges.blocks;
      if (has_nan || (amax > 0 && std::isinf(smallest))) {
        ++ranges.nan_blocks;
      } else if (amax > 0) {
        ranges.max_ratio = std::max(ranges.max_ratio, amax / smallest);
      }
    }
  }
  return ranges;
}

BlockRanges reference(const at::Tensor& x, const BlockRangeOptions& options) {
  if (x.numel() == 0) return {};
  const std::int64_t columns = x.dim() == 0 ? 1 : x.size(-1);
  const at::Tensor matrix = x.to(at::kDouble).reshape({-1, columns});
  if (options.dims == 2) return reference(matrix, options.size, options.size);
  BlockRanges ranges = reference(matrix, 1, options.size);
  if (options.both_orientations) merge(ranges, reference(matrix, options.size, 1));
  return ranges;
}

void expect_equal(const BlockRanges& got, const BlockRanges& expected) {
  EXPECT_EQ(got.blocks, expected.blocks);
  EXPECT_EQ(got.nan_blocks, expected.nan_blocks);
  EXPECT_EQ(got.max_ratio, expected.max_ratio);
}

// Magnitudes over many powers of two, with zeros.
at::Tensor wide_data(at::IntArrayRef sizes, at::ScalarType dtype) {
  const at::Tensor exponents = at::randn(sizes) * 5;
  return (at::randn(sizes) * exponents.exp2() * (at::rand(sizes) > 0.1)).to(dtype);
}

void expect_definition(const at::Tensor& x) {
  for (const kernels::SimdTarget& target : kernels::simd_targets()) {
    const kernels::ScopedSimdTarget scope(target);
    for (const std::int64_t size : {1, 4, 16, 32, 33, 128, 1000}) {
      for (const BlockRangeOptions& options :
           {BlockRangeOptions{size, 1, false}, BlockRangeOptions{size, 1, true},
            BlockRangeOptions{size, 2, false}, BlockRangeOptions{size, 2, true}}) {
        SCOPED_TRACE(target.name + ", size " + std::to_string(size) + ", dims " +
                     std::to_string(options.dims));
        expect_equal(typed(blockwise_dynamic_range(x, options)), reference(x, options));
      }
    }
  }
}

TEST(BlockwiseDynamicRange, matches_definition_for_every_shape_and_simd_target) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    SCOPED_TRACE(c10::toString(dtype));
    for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{
             {64, 96}, {70, 101}, {3, 5, 37}, {129}, {}, {1, 1}, {0, 32}, {130, 1}}) {
      SCOPED_TRACE(::testing::PrintToString(sizes));
      expect_definition(wide_data(sizes, dtype));
    }
    expect_definition(wide_data({60, 50}, dtype).transpose(0, 1));
  }
}

TEST(BlockwiseDynamicRange, counts_blocks_without_a_range) {
  at::Tensor x = at::ones({4, 64}, at::kBFloat16);
  x[0][3] = std::numeric_limits<float>::quiet_NaN();
  x[1].slice(0, 0, 32).fill_(-std::numeric_limits<float>::infinity());
  x[2][0] = std::numeric_limits<float>::infinity();
  x[3].fill_(0);
  expect_definition(x);
  const BlockRanges ranges = typed(blockwise_dynamic_range(x, {}));
  EXPECT_EQ(ranges.blocks, 8);
  EXPECT_EQ(ranges.nan_blocks, 2);
  EXPECT_EQ(ranges.max_ratio, std::numeric_limits<double>::infinity());
}

TEST(BlockwiseDynamicRange, special_values_match_the_definition) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor values = testing::special_values(dtype);
    const at::Tensor finite = testing::finite_special_values(dtype);
    for (const at::Tensor& x : {values, finite}) {
      expect_definition(x);
      // Each value in rows and blocks with different neighbors.
      expect_definition(x.slice(0, 0, x.numel() / 6 * 6).view({6, -1}).t());
    }
  }
}

TEST(BlockwiseDynamicRange, does_not_depend_on_threads_and_accumulates) {
  const at::Tensor a = wide_data({3000, 100}, at::kBFloat16);
  const at::Tensor b = wide_data({10, 7}, at::kBFloat16);
  const BlockRangeOptions options{32, 1, true};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  BlockRanges expected = typed(blockwise_dynamic_range(a, options));
  at::set_num_threads(3);
  expect_equal(typed(blockwise_dynamic_range(a, options)), expected);
  at::set_num_threads(threads);

  at::Tensor accumulator = empty_block_ranges(at::kCPU);
  accumulate_blockwise_dynamic_range(a, options, accumulator);
  accumulate_blockwise_dynamic_range(b, options, accumulator);
  merge(expected, typed(blockwise_dynamic_range(b, options)));
  expect_equal(typed(accumulator), expected);
}

TEST(BlockwiseDynamicRange, refuses_shapes_of_blocks_that_are_none) {
  EXPECT_THROW(blockwise_dynamic_range(at::ones({4}), {.size = 0}), UsageError);
  EXPECT_THROW(blockwise_dynamic_range(at::ones({4}), {.size = 32, .dims = 3}), UsageError);
  EXPECT_THROW(blockwise_dynamic_range(at::ones({4}, at::kInt), {}), ShapeError);
}

}  // namespace
}  // namespace telens
