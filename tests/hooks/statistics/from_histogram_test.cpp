// Statistics computed from histograms against those of a read of the same tensor.
#include "hooks/statistics/histogram.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "core/formats/dispatch.h"
#include "core/ops/histogram.h"
#include "core/ops/histogram_layout.h"
#include "core/ops/statistics.h"
#include "hooks/statistics/accumulator.h"
#include "hooks/statistics/catalogue.h"
#include "hooks/statistics/scales.h"

namespace telens {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// A histogram with the bins that it refers to.
struct Counted {
  HistogramName name;
  std::vector<BinCount> bins;

  Histogram view() const { return {name, bins}; }
};

FormatId get_format(const at::Tensor& x) {
  if (x.scalar_type() == at::kFloat) return FormatId::fp32;
  return x.scalar_type() == at::kHalf ? FormatId::fp16 : FormatId::bf16;
}

Counted compute_histogram(const at::Tensor& x, HistogramBins bins) {
  const bool codes = bins == HistogramBins::codes;
  at::Tensor counts =
      codes ? ops::empty_code_histogram(at::kCPU) : ops::empty_exponent_histogram(at::kCPU);
  codes ? ops::code_histogram(x, counts) : ops::exponent_histogram(x, counts);
  Counted counted{{bins, get_format(x)}, {}};
  const auto* data = counts.const_data_ptr<std::int64_t>();
  for (std::int64_t bin = 0; bin < counts.numel(); ++bin) {
    if (data[bin] > 0) counted.bins.push_back({bin, data[bin]});
  }
  return counted;
}

StatisticsAccumulator one_pass(const at::Tensor& x, FormatId fp8, float scale) {
  const at::Tensor words = ops::statistics(x, {{at::full({1}, scale)}, {fp8}});
  StatisticsAccumulator sums(1);
  sums.add({words.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(words.numel())});
  return sums;
}

struct Data {
  std::string name;
  at::Tensor x;
};

std::vector<Data> get_data(at::ScalarType dtype) {
  at::manual_seed(11);
  const at::Tensor normal = at::randn({100'003});
  const at::Tensor codes = at::arange(65536, at::kInt).to(at::kShort).view(dtype);
  at::Tensor with_nan = normal.clone();
  with_nan[17].fill_(kNan);
  at::Tensor with_inf = normal.clone();
  with_inf[99].fill_(-kInf);
  return {{"all codes", codes},
          {"all finite codes", codes.masked_select(codes.isfinite())},
          {"normal", normal.to(dtype)},
          {"shifted", (normal + 100).to(dtype)},
          {"wide", (normal * normal.mul(9).exp()).clamp(-6e4, 6e4).to(dtype)},
          {"half zeros", normal.relu().to(dtype)},
          {"a NaN", with_nan.to(dtype)},
          {"an Inf", with_inf.to(dtype)},
          {"zeros", at::zeros({1000}, dtype)},
          {"one element", at::full({1}, -3, dtype)},
          {"empty", at::empty({0}, dtype)}};
}

// The read keeps FP32 sums within a chunk; its documented bound is 2^-16 of the sum of magnitudes.
void expect_near(double got, double expected, double magnitude) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got));
  } else if (std::isinf(expected)) {
    EXPECT_EQ(got, expected);
  } else {
    EXPECT_NEAR(got, expected, std::ldexp(magnitude, -16));
  }
}

class FromHistogramTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(FromHistogramTest, all_codes_match_statistics_of_a_direct_read) {
  for (const Data& data : get_data(GetParam())) {
    SCOPED_TRACE(data.name);
    const Counted counted = compute_histogram(data.x, HistogramBins::codes);
    const TensorSums got = compute_tensor_sums(counted.view());
    const TensorSums read = one_pass(data.x, FormatId::e4m3, 1).tensor();
    EXPECT_EQ(got.numel, read.numel);
    EXPECT_EQ(got.nan, read.nan);
    EXPECT_EQ(got.posinf, read.posinf);
    EXPECT_EQ(got.neginf, read.neginf);
    EXPECT_EQ(got.zeros, read.zeros);
    EXPECT_EQ(got.subnormals, read.subnormals);
    EXPECT_EQ(got.min, read.min);
    EXPECT_EQ(got.max, read.max);
    EXPECT_EQ(got.smallest_nonzero, read.smallest_nonzero);
    expect_near(got.sum, read.sum, read.l1);
    expect_near(got.l1, read.l1, read.l1);
    expect_near(got.sum_squares, read.sum_squares, read.sum_squares);
    EXPECT_NEAR(got.m2, read.m2, std::ldexp(read.sum_squares, -14));
  }
}

// All codes of finite numbers; these sums leave out NaN and Inf.
TEST_P(FromHistogramTest, all_codes_give_sums_to_the_last_bits) {
  for (const Data& data : get_data(GetParam())) {
    SCOPED_TRACE(data.name);
    const at::Tensor finite = data.x.masked_select(data.x.isfinite()).to(at::kDouble);
    long double sum = 0, l1 = 0, squares = 0, m2 = 0;
    const double* values = finite.const_data_ptr<double>();
    for (std::int64_t i = 0; i < finite.numel(); ++i) {
      sum += values[i];
      l1 += std::fabs(values[i]);
      squares += static_cast<long double>(values[i]) * values[i];
    }
    for (std::int64_t i = 0; i < finite.numel(); ++i) {
      m2 += std::pow(values[i] - sum / finite.numel(), 2.0L);
    }
    const Counted counted = compute_histogram(data.x, HistogramBins::codes);
    const TensorSums got = compute_tensor_sums(counted.view());
    const auto bound = [](long double magnitude) {
      return static_cast<double>(1e-12L * magnitude);
    };
    EXPECT_NEAR(got.sum, static_cast<double>(sum), bound(l1));
    EXPECT_NEAR(got.l1, static_cast<double>(l1), bound(l1));
    EXPECT_NEAR(got.sum_squares, static_cast<double>(squares), bound(squares));
    EXPECT_NEAR(got.m2, static_cast<double>(m2), bound(squares));
  }
}

TEST_P(FromHistogramTest, all_codes_give_the_results_of_any_cast) {
  for (const Data& data : get_data(GetParam())) {
    for (const FormatId fp8 : {FormatId::e4m3, FormatId::e5m2}) {
      for (const float scale : {1.0F, 0.01F, 300.0F, 1e5F}) {
        SCOPED_TRACE(fmt::format("{} to {} with scale {}", data.name, get_name(fp8), scale));
        const Counted counted = compute_histogram(data.x, HistogramBins::codes);
        const CastSums got = compute_cast_sums(counted.view(), fp8, scale);
        const CastSums read = one_pass(data.x, fp8, scale).casts().front();
        EXPECT_EQ(got.numel, read.numel);
        EXPECT_EQ(got.underflows, read.underflows);
        EXPECT_EQ(got.overflows, read.overflows);
        EXPECT_EQ(got.saturated, read.saturated);
        EXPECT_EQ(got.scale_inv_min, read.scale_inv_min);
        EXPECT_EQ(got.scale_inv_max, read.scale_inv_max);
        expect_near(got.squared_error, read.squared_error, read.squared_error);
      }
    }
  }
}

bool holds(const Bounds& bounds, double value) {
  if (std::isnan(value)) return std::isnan(bounds.low) && std::isnan(bounds.high);
  return bounds.low <= value && value <= bounds.high;
}

TEST_P(FromHistogramTest, bounds_from_codes_are_the_exact_counts) {
  for (const Data& data : get_data(GetParam())) {
    SCOPED_TRACE(data.name);
    const Counted counted = compute_histogram(data.x, HistogramBins::codes);
    const CastSums cast = compute_cast_sums(counted.view(), FormatId::e4m3, 300);
    const CastBounds bounds = compute_cast_bounds(counted.view(), FormatId::e4m3, {300, 300});
    EXPECT_EQ(bounds.numel, cast.numel);
    for (const auto& [bound, count] : {std::pair{bounds.underflows, cast.underflows},
                                       {bounds.overflows, cast.overflows},
                                       {bounds.saturated, cast.saturated}}) {
      EXPECT_EQ(bound.low, static_cast<double>(count));
      EXPECT_EQ(bound.high, static_cast<double>(count));
    }
  }
}

TEST_P(FromHistogramTest, exponents_bound_the_amax_and_cast_results) {
  bool some_are_wide = false;
  for (const Data& data : get_data(GetParam())) {
    const Counted codes = compute_histogram(data.x, HistogramBins::codes);
    const Counted exponents = compute_histogram(data.x, HistogramBins::exponent);
    const Bounds amax = compute_amax(exponents.view());
    EXPECT_TRUE(holds(amax, compute_amax(codes.view()).low)) << data.name;
    for (const FormatId fp8 : {FormatId::e4m3, FormatId::e5m2}) {
      for (const float scale : {1.0F, 0.01F, 300.0F, 1e5F}) {
        SCOPED_TRACE(fmt::format("{} to {} with scale {}", data.name, get_name(fp8), scale));
        const CastSums exact = compute_cast_sums(codes.view(), fp8, scale);
        const CastBounds bounds =
            compute_cast_bounds(exponents.view(), fp8, {scale * 0.75F, scale * 1.5F});
        EXPECT_TRUE(holds(bounds.underflows, static_cast<double>(exact.underflows)));
        EXPECT_TRUE(holds(bounds.overflows, static_cast<double>(exact.overflows)));
        EXPECT_TRUE(holds(bounds.saturated, static_cast<double>(exact.saturated)));
        EXPECT_EQ(bounds.numel, exact.numel);
        some_are_wide |= bounds.underflows.low < bounds.underflows.high;
      }
    }
  }
  EXPECT_TRUE(some_are_wide);
}

TEST_P(FromHistogramTest, magnitudes_are_counted_by_their_exponents) {
  for (const auto& [name, x] : get_data(GetParam())) {
    SCOPED_TRACE(name);
    const at::Tensor magnitudes = x.to(at::kDouble).abs();
    MagnitudeCounts expected;
    expected.numel = x.numel();
    for (const double magnitude : std::span(magnitudes.const_data_ptr<double>(), x.numel())) {
      if (std::isnan(magnitude)) {
        ++expected.nans;
      } else if (std::isinf(magnitude)) {
        ++expected.infinities;
      } else if (magnitude == 0) {
        ++expected.zeros;
      } else {
        ++expected.exponents[static_cast<int>(std::floor(std::log2(magnitude)))];
      }
    }
    const MagnitudeCounts codes =
        count_magnitudes(compute_histogram(x, HistogramBins::codes).view());
    EXPECT_EQ(codes, expected);

    const int smallest_normal = GetParam() == at::kHalf ? -14 : -126;
    MagnitudeCounts rough = expected;  // subnormals share one exponent here
    std::int64_t subnormals = 0;
    while (!rough.exponents.empty() && rough.exponents.begin()->first < smallest_normal) {
      subnormals += rough.exponents.begin()->second;
      rough.exponents.erase(rough.exponents.begin());
    }
    if (subnormals > 0) rough.exponents[smallest_normal - 1] = subnormals;
    EXPECT_EQ(count_magnitudes(compute_histogram(x, HistogramBins::exponent).view()), rough);
  }
}

TEST(FromHistogramMergeTest, magnitudes_of_parts_sum_to_the_total) {
  const at::Tensor x = at::arange(-30, 70, at::kFloat).div(7).to(at::kBFloat16);
  MagnitudeCounts sum;
  for (const at::Tensor& part : x.split(33)) {
    merge(sum, count_magnitudes(compute_histogram(part, HistogramBins::codes).view()));
  }
  EXPECT_EQ(sum, count_magnitudes(compute_histogram(x, HistogramBins::codes).view()));
}

INSTANTIATE_TEST_SUITE_P(dtypes, FromHistogramTest, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST_P(FromHistogramTest, nonfinite_values_are_counted_with_any_bins) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor x =
      at::tensor({NAN, inf, -inf, -inf, -NAN, 0.0F, -0.0F, 1.0F, 65504.0F, -NAN}).to(GetParam());
  for (const HistogramBins bins : {HistogramBins::codes, HistogramBins::exponent}) {
    const NonFiniteCounts counts = count_nonfinite(compute_histogram(x, bins).view());
    EXPECT_EQ(counts.nans, at::isnan(x).sum().item<std::int64_t>());
    EXPECT_EQ(counts.infinities, at::isinf(x).sum().item<std::int64_t>());
    EXPECT_EQ(counts.all(), 6);
  }
}

TEST(FromHistogramErrorsTest, bins_that_do_not_exist_count_for_nothing) {
  const std::vector<BinCount> bins{{-1, 3}, {1 << 20, 3}, {INT64_MAX, 3}};
  for (const HistogramBins kind : {HistogramBins::codes, HistogramBins::exponent}) {
    EXPECT_EQ(count_nonfinite({{kind, FormatId::bf16}, bins}).all(), 0);
  }
}

TEST(FromHistogramErrorsTest, exponents_give_no_exact_statistics) {
  const Counted counted = compute_histogram(at::ones({4}), HistogramBins::exponent);
  EXPECT_THROW(compute_tensor_sums(counted.view()), UsageError);
  EXPECT_THROW(compute_cast_sums(counted.view(), FormatId::e4m3, 1), UsageError);
}

TEST(FromHistogramErrorsTest, bins_that_do_not_exist_are_refused) {
  const Counted exponents{{HistogramBins::exponent, FormatId::bf16}, {{514, 1}}};
  EXPECT_THROW(compute_amax(exponents.view()), UsageError);
  const Counted codes{{HistogramBins::codes, FormatId::bf16}, {{-1, 1}}};
  EXPECT_THROW(compute_tensor_sums(codes.view()), UsageError);
}

TEST(HistogramNameTest, names_survive_a_round_trip) {
  for (const HistogramName& name : {HistogramName{HistogramBins::codes, FormatId::bf16},
                                    HistogramName{HistogramBins::codes, FormatId::fp16},
                                    HistogramName{HistogramBins::exponent, FormatId::fp32}}) {
    EXPECT_EQ(parse_histogram_name(format_histogram_name(name)), name);
  }
  EXPECT_EQ(format_histogram_name({HistogramBins::codes, FormatId::bf16}), "code_histogram_bf16");
  for (const char* other : {"code_histogram_fp32", "code_histogram_", "l2_norm", ""}) {
    EXPECT_EQ(parse_histogram_name(other), std::nullopt) << other;
  }
}

// Expected values are worked out by hand: E4M3's largest value is 448, E5M2's 57344.
TEST(WhatIfScaleTest, current_scaling_takes_the_tensors_own_amax) {
  WhatIfScale scale({.amax = AmaxSource::current}, FormatId::e4m3);
  EXPECT_EQ(scale.next(2), 224);
  EXPECT_EQ(scale.next(448), 1);
  EXPECT_EQ(scale.next(0), 1);
  EXPECT_EQ(scale.next(kInf), 1);
  WhatIfScale with_margin({.amax = AmaxSource::current, .margin = 1}, FormatId::e5m2);
  EXPECT_EQ(with_margin.next(2), 14336);
}

TEST(WhatIfScaleTest, delayed_scaling_takes_the_amaxes_of_iterations_before) {
  WhatIfScale recent({.amax = AmaxSource::most_recent}, FormatId::e4m3);
  EXPECT_EQ(recent.next(2), 1);  // nothing was seen before
  EXPECT_EQ(recent.next(4), 224);
  EXPECT_EQ(recent.next(kNan), 112);
  EXPECT_EQ(recent.next(0), 112);  // a zero or non-finite amax keeps the scale
  EXPECT_EQ(recent.next(1), 112);
  EXPECT_EQ(recent.next(1), 448);

  WhatIfScale largest({.amax = AmaxSource::max, .history = 2, .margin = 2}, FormatId::e4m3);
  EXPECT_EQ(largest.next(4), 1);
  EXPECT_EQ(largest.next(2), 28);
  EXPECT_EQ(largest.next(1), 28);  // the history still has the 4
  EXPECT_EQ(largest.next(1), 56);
  EXPECT_EQ(largest.next(1), 112);
}

TEST(WhatIfScaleTest, an_empty_history_is_refused) {
  EXPECT_THROW(WhatIfScale({.amax = AmaxSource::max, .history = 0}, FormatId::e4m3), UsageError);
}

}  // namespace
}  // namespace telens
