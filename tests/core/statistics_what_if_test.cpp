// What-if statistics of casts in blocks against quantizing and reading the codes, bit by bit, on
// every SIMD target of this processor.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/kernels/cpu/simd_target.h"
#include "core/ops/statistics.h"
#include "core/ops/statistics_layout.h"
#include "hooks/statistics/accumulator.h"
#include "tests/core/matrix_data.h"
#include "tests/core/statistics_checks.h"
#include "tests/core/what_if_casts.h"

namespace telens {
namespace {

using namespace ops;  // the operators under test

using testing::cpu_what_if_casts;
using testing::expect_cast;
using testing::special_matrix;
using testing::typed;
using testing::wide_data;

std::vector<at::Tensor> accumulators(std::size_t count) {
  std::vector<at::Tensor> all;
  for (std::size_t i = 0; i < count; ++i) all.push_back(empty_block_casts(at::kCPU));
  return all;
}

std::vector<CastSums> what_if(const at::Tensor& x, std::span<const WhatIfCast> casts) {
  const std::vector<at::Tensor> words = accumulators(casts.size());
  accumulate_what_if_statistics(x, casts, words);
  std::vector<CastSums> sums;
  for (const at::Tensor& each : words) sums.push_back(typed(each));
  return sums;
}

BlockCodesPair quantized(const at::Tensor& x, const WhatIfCast& cast) {
  const Orientations orientations{!cast.columnwise, cast.columnwise};
  switch (cast.mode) {
    case ScalingMode::mxfp8:
      return quantize_mxfp8(x, cast.format, {.two_dimensional = cast.squares}, orientations);
    case ScalingMode::mxfp6_e3m2:
    case ScalingMode::mxfp6_e2m3:
      return quantize_mxfp6(x, cast.format, {.two_dimensional = cast.squares}, orientations);
    case ScalingMode::nvfp4:
      return quantize_nvfp4(x, {.two_dimensional = cast.squares}, orientations);
    default:
      return quantize_fp8_blocks(
          x, cast.format, {.two_dimensional = cast.mode == ScalingMode::block_2d}, orientations);
  }
}

CastSums of_codes(const at::Tensor& x, const WhatIfCast& cast) {
  const BlockCodesPair pair = quantized(x, cast);
  at::Tensor accumulator = empty_block_casts(at::kCPU);
  accumulate_block_cast_statistics(
      cast.columnwise ? x.t() : x,
      {cast.columnwise ? pair.columnwise : pair.rowwise, cast.format, cast.mode}, accumulator);
  return typed(accumulator);
}

std::string get_words(const WhatIfCast& cast) {
  return std::string(get_name(cast.mode)) + " " + std::string(get_name(cast.format)) +
         (cast.squares ? " squares" : "") + (cast.columnwise ? " columnwise" : " rowwise");
}

void expect_those_of_codes(const at::Tensor& x) {
  const std::vector<WhatIfCast> casts = cpu_what_if_casts();
  // A matrix of a single row or column may be read in either order, so its sums may differ.
  const double bound = x.size(0) == 1 || x.size(1) == 1 ? 1e-15 : 0;
  for (const kernels::SimdTarget& target : kernels::simd_targets()) {
    const kernels::ScopedSimdTarget scope(target);
    const std::vector<CastSums> got = what_if(x, casts);
    for (std::size_t i = 0; i < casts.size(); ++i) {
      SCOPED_TRACE(target.name + ", " + get_words(casts[i]));
      expect_cast(got[i], of_codes(x, casts[i]), bound);
    }
  }
}

TEST(WhatIfStatistics, match_codes_bit_by_bit_for_every_format_and_shape) {
  at::manual_seed(8);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    SCOPED_TRACE(c10::toString(dtype));
    for (const std::vector<std::int64_t>& sizes : std::vector<std::vector<std::int64_t>>{
             {20, 150}, {33, 47}, {1, 9}, {130, 2}, {300, 512}}) {
      SCOPED_TRACE(::testing::PrintToString(sizes));
      expect_those_of_codes(wide_data(sizes, dtype));
    }
    expect_those_of_codes(wide_data({50, 30}, dtype).t());
  }
}

TEST(WhatIfStatistics, match_codes_if_blocks_span_several_parts) {
  at::manual_seed(9);
  // 131,072 elements are a chunk: 43 rows of 3,000, not a multiple of 16, 32 or 128.
  expect_those_of_codes(wide_data({300, 3000}, at::kBFloat16));
}

TEST(WhatIfStatistics, special_values_match_codes) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor x = special_matrix();
    expect_those_of_codes(x.to(dtype));
    expect_those_of_codes(x.nan_to_num(1, 1, 1).to(dtype));
    expect_those_of_codes(x.nan_to_num(0, 0, 0).mul(0x1p-20).to(dtype));
    // Rows whose length is no multiple of a vector; the last block has a NaN.
    expect_those_of_codes(x.slice(1, 0, 37).to(dtype).contiguous());
  }
}

TEST(WhatIfStatistics, do_not_depend_on_the_number_of_threads) {
  at::manual_seed(10);
  const at::Tensor x = wide_data({4000, 100}, at::kBFloat16);
  const std::vector<WhatIfCast> casts = cpu_what_if_casts();
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<CastSums> expected = what_if(x, casts);
  at::set_num_threads(3);
  const std::vector<CastSums> got = what_if(x, casts);
  at::set_num_threads(threads);
  for (std::size_t i = 0; i < casts.size(); ++i) {
    SCOPED_TRACE(get_words(casts[i]));
    expect_cast(got[i], expected[i], 0);
  }
}

TEST(WhatIfStatistics, are_merged_into_existing_sums) {
  at::manual_seed(11);
  const at::Tensor x = wide_data({64, 64}, at::kFloat);
  const std::vector<WhatIfCast> casts{{FormatId::e4m3, ScalingMode::mxfp8}};
  const std::vector<at::Tensor> words = accumulators(1);
  for (int i = 0; i < 2; ++i) accumulate_what_if_statistics(x, casts, words);
  CastSums expected;
  for (int i = 0; i < 2; ++i) merge(expected, what_if(x, casts)[0]);
  expect_cast(typed(words[0]), expected, 0);
}

TEST(WhatIfStatistics, empty_tensor_gives_no_sums) {
  for (const at::Tensor& x : {at::zeros({0, 64}), at::zeros({64, 0})}) {
    for (const CastSums& sums : what_if(x, cpu_what_if_casts())) {
      EXPECT_EQ(sums.numel, 0);
      EXPECT_EQ(sums.scale_inv_max, CastSums().scale_inv_max);
    }
  }
}

TEST(WhatIfStatistics, reject_casts_without_blocks) {
  const at::Tensor x = at::ones({32, 64});
  const auto with = [&](const WhatIfCast& cast) { what_if(x, std::vector{cast}); };
  EXPECT_THROW(with({FormatId::e4m3, ScalingMode::tensor}), UsageError);
  EXPECT_THROW(with({FormatId::e4m3, ScalingMode::nvfp4}), UsageError);
  EXPECT_THROW(with({FormatId::e2m1, ScalingMode::mxfp8}), Error);
  EXPECT_THROW(with({FormatId::e2m3, ScalingMode::mxfp6_e3m2}), UsageError);
  const std::vector<WhatIfCast> casts{{FormatId::e4m3, ScalingMode::mxfp8}};
  EXPECT_THROW(accumulate_what_if_statistics(x, casts, {}), UsageError);
  EXPECT_THROW(accumulate_what_if_statistics(x, casts, at::zeros({1}, at::kLong)), ShapeError);
  EXPECT_THROW(what_if(at::ones({32}), casts), ShapeError);
}

}  // namespace
}  // namespace telens
