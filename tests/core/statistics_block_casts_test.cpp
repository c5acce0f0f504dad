// The statistics of a block-scaled cast, against their definition element by element, on every SIMD
// target of this processor.
#include "core/ops/statistics.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/formats/dispatch.h"
#include "core/kernels/cpu/simd_target.h"
#include "core/ops/statistics_layout.h"
#include "hooks/statistics/accumulator.h"
#include "tests/core/block_casts.h"
#include "tests/core/matrix_data.h"
#include "tests/core/statistics_checks.h"

namespace telens {
namespace {

using namespace ops;  // the operators under test

using testing::expect_cast;
using testing::get_casts;
using testing::NamedCast;
using testing::special_matrix;
using testing::typed;
using testing::wide_data;

CastSums compute_statistics(const at::Tensor& x, const BlockCast& cast) {
  at::Tensor accumulator = empty_block_casts(at::kCPU);
  accumulate_block_cast_statistics(x, cast, accumulator);
  return typed(accumulator);
}

template <typename T>
T element(const at::Tensor& contiguous, std::int64_t row, std::int64_t column) {
  return contiguous.const_data_ptr<T>()[row * contiguous.size(1) + column];
}

// cast: with contiguous tensors.
float get_scale(const BlockCast& cast, std::int64_t row, std::int64_t column) {
  const at::Tensor& scales = cast.codes.scale_inv;
  const std::int64_t line = row;
  row /= block_height(cast.mode);
  column /= block_length(cast.mode);
  if (cast.mode == ScalingMode::mxfp8) {
    return decode<E8M0>(element<std::uint8_t>(scales, row, column));
  }
  if (cast.mode != ScalingMode::nvfp4) return element<float>(scales, row, column);
  const at::Tensor& above = cast.codes.tensor_scale;  // the tensor's, or each row's
  return decode<E4M3>(element<std::uint8_t>(scales, row, column)) *
         above.const_data_ptr<float>()[above.numel() == 1 ? 0 : line];
}

std::uint8_t code_at(const BlockCast& cast, std::int64_t row, std::int64_t column) {
  const at::Tensor& codes = cast.codes.codes;
  if (cast.mode != ScalingMode::nvfp4) return element<std::uint8_t>(codes, row, column);
  const auto pair = element<std::uint8_t>(codes, row, column / 2);
  return column % 2 == 0 ? pair & 0xf : pair >> 4;
}

// Adds one element. The smallest magnitude that is clipped is an argument, so that it is not
// computed as in the kernels.
template <typename Format>
void add_element(float x, std::uint8_t code, float scale, double first_clipped, CastSums& sums) {
  const float decoded = decode<Format>(code) * scale;
  const double magnitude = std::fabs(x);
  ++sums.numel;
  sums.underflows += x != 0 && decoded == 0;
  sums.overflows += magnitude > static_cast<double>(Format::kMax * scale);
  const float factor = std::min(1 / scale, FP32::kMax);
  sums.saturated += !std::isnan(scale) && std::fabs(x) * factor >= first_clipped;
  const double error = static_cast<double>(decoded) - x;
  sums.squared_error += error * error;
  sums.scale_inv_min = smaller(sums.scale_inv_min, scale);
  sums.scale_inv_max = larger(sums.scale_inv_max, scale);
}

CastSums reference(const at::Tensor& x, BlockCast cast) {
  cast.codes.codes = cast.codes.codes.contiguous();
  cast.codes.scale_inv = cast.codes.scale_inv.contiguous();
  const at::Tensor values = x.to(at::kFloat).contiguous();
  CastSums sums;
  for (std::int64_t row = 0; row < x.size(0); ++row) {
    for (std::int64_t column = 0; column < x.size(1); ++column) {
      const auto value = element<float>(values, row, column);
      const std::uint8_t code = code_at(cast, row, column);
      const float scale = get_scale(cast, row, column);
      // 464 is a tie between 448 and 480, which rounds to the even 448; 61440 is one between 57344
      // and 2^16, 7 one between 6 and 8.
      if (cast.format == FormatId::e4m3) {
        add_element<E4M3>(value, code, scale, std::nextafter(464.0F, 1e9F), sums);
      } else if (cast.format == FormatId::e5m2) {
        add_element<E5M2>(value, code, scale, 61440, sums);
      } else {
        add_element<E2M1>(value, code, scale, 7, sums);
      }
    }
  }
  return sums;
}

void expect_definition(const at::Tensor& x) {
  for (const NamedCast& each : get_casts(x)) {
    const CastSums expected = reference(each.x, each.cast);
    for (const kernels::SimdTarget& target : kernels::simd_targets()) {
      const kernels::ScopedSimdTarget scope(target);
      SCOPED_TRACE(target.name + ", " + each.name + ", " + std::string(get_name(each.cast.format)));
      expect_cast(compute_statistics(each.x, each.cast), expected, 1e-12);
    }
  }
}

TEST(BlockCastStatistics, match_the_definition_for_every_format_and_simd_target) {
  at::manual_seed(5);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    SCOPED_TRACE(c10::toString(dtype));
    for (const std::vector<std::int64_t>& sizes :
         std::vector<std::vector<std::int64_t>>{{20, 150}, {33, 47}, {1, 9}, {130, 2}}) {
      SCOPED_TRACE(::testing::PrintToString(sizes));
      expect_definition(wide_data(sizes, dtype));
    }
    expect_definition(wide_data({50, 30}, dtype).t());
  }
}

TEST(BlockCastStatistics, special_values_match_the_definition) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor x = special_matrix();
    expect_definition(x.to(dtype));
    // Without infinity and NaN, which make all other elements of their blocks 0.
    expect_definition(x.nan_to_num(1, 1, 1).to(dtype));
  }
}

TEST(BlockCastStatistics, values_lost_by_a_zero_scale_are_underflows) {
  // NVFP4's small block needs 1e-4 / 6 of the tensor's scale, which E4M3 does not have.
  at::Tensor x = at::full({1, 32}, 1e-4F);
  x[0][0] = 1000;
  const BlockCodes codes = quantize_nvfp4(x, {}, {}).rowwise;
  const CastSums sums = compute_statistics(x, {codes, FormatId::e2m1, ScalingMode::nvfp4});
  EXPECT_EQ(sums.underflows, 31);
  EXPECT_EQ(sums.scale_inv_min, 0);
}

TEST(BlockCastStatistics, count_clipping_by_a_scale_that_was_rounded_down) {
  // By OCP's rule, amaxes of 500 and of 256 have the same scale, 1. 500 is above 464 and clips; 460
  // rounds to 448.
  at::Tensor x = at::ones({2, 32});
  x[0][0] = 500;
  x[1][0] = -460;
  const BlockCodes codes =
      quantize_mxfp8(x, FormatId::e4m3, {.scale_rounding = ScaleRounding::floor}, {}).rowwise;
  const CastSums sums = compute_statistics(x, {codes, FormatId::e4m3, ScalingMode::mxfp8});
  EXPECT_EQ(sums.overflows, 2);
  EXPECT_EQ(sums.saturated, 1);
  EXPECT_EQ(sums.squared_error, 52.0 * 52 + 12 * 12);
}

TEST(BlockCastStatistics, merged_parts_equal_the_whole) {
  at::manual_seed(6);
  at::Tensor x = wide_data({3000, 96}, at::kFloat);
  x.slice(0, 1024).add_(1000);  // parts with different means
  x[7][7] = std::numeric_limits<float>::quiet_NaN();
  for (const bool with_nan : {true, false}) {
    if (!with_nan) x[7][7] = 1;
    const BlockCodes codes = quantize_mxfp8(x, FormatId::e4m3, {}, {}).rowwise;
    const CastSums whole = compute_statistics(x, {codes, FormatId::e4m3, ScalingMode::mxfp8});
    EXPECT_EQ(std::isnan(whole.squared_error), with_nan);
    at::Tensor accumulator = empty_block_casts(at::kCPU);
    for (const std::int64_t begin : {1000, 0, 2000}) {
      const auto part = [&](const at::Tensor& of) { return of.slice(0, begin, begin + 1000); };
      accumulate_block_cast_statistics(
          part(x),
          {{part(codes.codes), part(codes.scale_inv), {}}, FormatId::e4m3, ScalingMode::mxfp8},
          accumulator);
    }
    const CastSums merged = typed(accumulator);
    expect_cast(merged, whole, 1e-12);
  }
}

TEST(BlockCastStatistics, do_not_depend_on_the_number_of_threads) {
  at::manual_seed(7);
  for (const NamedCast& each : get_casts(wide_data({4000, 100}, at::kBFloat16))) {
    const int threads = at::get_num_threads();
    at::set_num_threads(1);
    const CastSums expected = compute_statistics(each.x, each.cast);
    at::set_num_threads(3);
    const CastSums got = compute_statistics(each.x, each.cast);
    at::set_num_threads(threads);
    SCOPED_TRACE(each.name);
    expect_cast(got, expected, 0);
  }
}

TEST(BlockCastStatistics, empty_tensor_gives_no_sums) {
  for (const NamedCast& each : get_casts(at::zeros({0, 64}))) {
    const CastSums sums = compute_statistics(each.x, each.cast);
    EXPECT_EQ(sums.numel, 0) << each.name;
    EXPECT_EQ(sums.scale_inv_max, CastSums().scale_inv_max) << each.name;
  }
}

TEST(BlockCastStatistics, refuse_codes_of_another_matrix) {
  const at::Tensor x = at::ones({32, 64});
  const BlockCodesPair pair = quantize_mxfp8(x, FormatId::e4m3, {}, {});
  const BlockCast columnwise{pair.columnwise, FormatId::e4m3, ScalingMode::mxfp8};
  EXPECT_THROW(compute_statistics(x, columnwise), ShapeError);
  at::Tensor too_small = at::zeros({1}, at::kLong);
  EXPECT_THROW(accumulate_block_cast_statistics(x.t(), columnwise, too_small), ShapeError);
}

}  // namespace
}  // namespace telens
