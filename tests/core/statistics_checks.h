// Data with special values and comparisons within the documented bounds, for the tests of
// statistics.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "core/ops/statistics_layout.h"
#include "hooks/statistics/accumulator.h"
#include "tests/core/special_values.h"

namespace telens::testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline at::Tensor float_scale(float value) { return at::full({1}, value, at::kFloat); }

inline StatisticsAccumulator typed(const at::Tensor& words, std::size_t casts) {
  StatisticsAccumulator accumulator(casts);
  accumulator.add({words.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(words.numel())});
  return accumulator;
}

// The sums of one block-scaled cast.
inline CastSums typed(const at::Tensor& words) {
  return from_words<CastSums>({words.const_data_ptr<std::int64_t>(), kCastSumsWords});
}

inline at::Tensor with_values(at::Tensor x,
                              std::initializer_list<std::pair<std::int64_t, float>> values) {
  for (const auto& [index, value] : values) x.view({-1})[index].fill_(value);
  return x;
}

struct Data {
  std::string name;
  at::Tensor x;
};

// The special values of every format as codes of the dtype, each with its neighbors and both
// signs.
inline at::Tensor special_values(at::ScalarType dtype) {
  const auto get_codes = [&]<typename Format>() {
    const auto codes = testing::special_codes<Format>();
    at::Tensor values = at::empty({static_cast<std::int64_t>(codes.size())}, dtype);
    auto* const to = static_cast<typename Format::Bits*>(values.mutable_data_ptr());
    for (std::size_t i = 0; i < codes.size(); ++i) to[i] = codes[i].code;
    return values;
  };
  if (dtype == at::kBFloat16) return get_codes.template operator()<BF16>();
  if (dtype == at::kHalf) return get_codes.template operator()<FP16>();
  return get_codes.template operator()<FP32>();
}

// Without infinity and NaN, with which every sum would be infinite or NaN.
inline at::Tensor finite_special_values(at::ScalarType dtype) {
  const at::Tensor values = special_values(dtype);
  return values.masked_select(values.isfinite());
}

// Sums may differ by this part of the sum of magnitudes, as documented.
inline constexpr double kSumsBound = 0x1p-16;

inline void expect_near(double got, double expected, double magnitude, const char* what) {
  EXPECT_NEAR(got, expected, kSumsBound * magnitude) << what;
}

inline void expect_counters_and_extremes(const TensorSums& got, const TensorSums& expected) {
  EXPECT_EQ(got.numel, expected.numel);
  EXPECT_EQ(got.nan, expected.nan);
  EXPECT_EQ(got.posinf, expected.posinf);
  EXPECT_EQ(got.neginf, expected.neginf);
  EXPECT_EQ(got.zeros, expected.zeros);
  EXPECT_EQ(got.subnormals, expected.subnormals);
  EXPECT_EQ(got.min, expected.min);
  EXPECT_EQ(got.max, expected.max);
  EXPECT_EQ(got.smallest_nonzero, expected.smallest_nonzero);
  EXPECT_FALSE(got.min == 0 && std::signbit(got.min)) << "a zero extreme is +0";
  EXPECT_FALSE(got.max == 0 && std::signbit(got.max)) << "a zero extreme is +0";
}

inline void expect_sums(const TensorSums& got, const TensorSums& expected) {
  expect_near(got.sum, expected.sum, expected.l1, "sum");
  expect_near(got.l1, expected.l1, expected.l1, "l1");
  expect_near(got.sum_squares, expected.sum_squares, expected.sum_squares, "sum_squares");
  EXPECT_NEAR(got.m2, expected.m2, std::ldexp(expected.sum_squares, -14)) << "m2";
}

// Expects the same counts of a cast, and its error within a factor of 1 +- `relative`.
inline void expect_cast(const CastSums& got, const CastSums& expected, double relative) {
  EXPECT_EQ(got.numel, expected.numel);
  EXPECT_EQ(got.underflows, expected.underflows);
  EXPECT_EQ(got.overflows, expected.overflows);
  EXPECT_EQ(got.saturated, expected.saturated);
  const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  EXPECT_PRED2(same, got.scale_inv_min, expected.scale_inv_min);
  EXPECT_PRED2(same, got.scale_inv_max, expected.scale_inv_max);
  if (std::isfinite(expected.squared_error)) {
    EXPECT_NEAR(got.squared_error, expected.squared_error, relative * expected.squared_error);
  } else {
    EXPECT_PRED2(same, got.squared_error, expected.squared_error);
  }
}

}  // namespace telens::testing
