// The moments of kurtosis against their definitions in long double, on data for which power sums
// about zero would lose all digits.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/cpu/simd_target.h"
#include "core/ops/statistics.h"
#include "tests/core/statistics_checks.h"

namespace telens {
namespace {

using testing::Data;
using testing::finite_special_values;
using testing::kInf;
using testing::kNan;
using testing::special_values;
using testing::typed;
using testing::with_values;

CentralMoments compute_moments(const at::Tensor& x) {
  ops::StatisticsCasts options;
  options.moments = true;
  return typed(ops::statistics(x, options), 0).tensor().moments;
}

// The definitions over the finite elements. long double has 11 bits more than double.
CentralMoments reference_moments(const at::Tensor& x) {
  const at::Tensor values = x.to(at::kDouble).contiguous().view({-1});
  const at::Tensor finite = values.masked_select(values.isfinite());
  const double* data = finite.const_data_ptr<double>();
  const std::int64_t count = finite.numel();
  if (count == 0) return {};
  long double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += data[i];
  const long double mean = sum / count;
  long double m2 = 0, m3 = 0, m4 = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const long double distance = data[i] - mean;
    m2 += distance * distance;
    m3 += distance * distance * distance;
    m4 += distance * distance * distance * distance;
  }
  return {count, static_cast<double>(mean), static_cast<double>(m2), static_cast<double>(m3),
          static_cast<double>(m4)};
}

// The bound of core/ops/statistics_layout.h after `merges`, with 2^-44 for sums of 2^13 elements.
void expect_moments(const CentralMoments& got, const CentralMoments& expected, double merges) {
  ASSERT_EQ(got.count, expected.count);
  if (expected.count == 0) return;
  const double n = static_cast<double>(expected.count);
  const double deviation = std::sqrt(expected.m2 / n);
  const double rounding = 0x1p-53 * merges * std::fabs(expected.mean);
  EXPECT_NEAR(got.mean, expected.mean, rounding + 0x1p-44 * deviation);
  if (expected.m2 == 0) {
    EXPECT_EQ(got.m2, 0);
    EXPECT_EQ(got.m4, 0);
    return;
  }
  const double relative = 0x1p-44 + 4 * rounding / deviation;
  EXPECT_NEAR(got.m2, expected.m2, relative * expected.m2);
  EXPECT_NEAR(got.m3, expected.m3, relative * std::sqrt(expected.m2 * expected.m4));
  EXPECT_NEAR(got.m4, expected.m4, relative * expected.m4);
}

std::vector<Data> hostile_data(at::ScalarType dtype) {
  at::manual_seed(23);
  const auto normal = [](std::int64_t n) { return at::randn({n}); };
  at::Tensor outlier = at::zeros({300'000});
  outlier[17] = 1;
  std::vector<Data> all{
      {"normal", normal(300'007)},
      {"large mean", normal(300'007) + 1e4},
      {"two clusters far apart", at::cat({normal(50'000) - 3e4, normal(80'000) + 3e4})},
      {"heavy tails", normal(50'000).pow(5)},
      {"skewed", normal(50'000).exp()},
      {"one outlier", outlier},
      {"constant", at::full({300'007}, 0.3F)},
      {"constant but for one", with_values(at::full({300'007}, 1.0F), {{9, 1 + 0x1p-7F}})},
      {"zeros", at::zeros({10'000})},
      {"tiny", normal(30'000) * 1e-38},
      {"NaN", with_values(normal(20'000), {{0, kNan}, {19'999, kNan}})},
      {"infinities", with_values(normal(20'000), {{5, kInf}, {9'000, -kInf}})},
      {"all NaN", at::full({9'000}, kNan)},
      {"all Inf", at::full({9'000}, kInf)},
      {"special values", special_values(dtype)},
      {"finite special values", finite_special_values(dtype)},
      {"empty", at::empty({0})},
      {"scalar", at::scalar_tensor(-3.5)},
      {"transposed", at::randn({96, 130, 7}).transpose(0, 1)},
      {"sliced", at::randn({96, 130}).slice(1, 3, 99, 2)},
  };
  for (const std::int64_t n : {1, 2, 3, 15, 31, 32, 33, 65, 8191, 8193, 131'071, 131'073}) {
    all.push_back({"normal of " + std::to_string(n), normal(n)});
  }
  if (dtype == at::kFloat) {
    all.push_back({"neighbors in FP32", at::randint(0, 2, {200'000}).to(at::kFloat) + 8388608});
    all.push_back({"largest", at::randint(0, 2, {50'000}).to(at::kFloat).mul(2).sub(1).mul(3e38)});
  }
  for (Data& data : all) data.x = data.x.to(dtype);
  return all;
}

class CentralMomentsOf : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, CentralMomentsOf,
                         ::testing::Values(at::kBFloat16, at::kHalf, at::kFloat),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

TEST_P(CentralMomentsOf, hostile_data_match_definitions_on_every_simd_target) {
  for (const Data& data : hostile_data(GetParam())) {
    SCOPED_TRACE(data.name);
    const CentralMoments expected = reference_moments(data.x);
    const double merges = 64 + static_cast<double>(data.x.numel()) / kStatisticsChunk;
    for (const kernels::SimdTarget& target : kernels::simd_targets()) {
      SCOPED_TRACE(target.name);
      const kernels::ScopedSimdTarget scope(target);
      expect_moments(compute_moments(data.x), expected, merges);
    }
  }
}

TEST_P(CentralMomentsOf, merged_parts_equal_the_whole) {
  at::manual_seed(24);
  const std::vector<std::int64_t> cuts{0, 1, 1000, 8193, 30'001, 50'000};
  at::Tensor x = at::randn({cuts.back()}) + 5;
  x.slice(0, 1000, 30'001).mul_(3).sub_(900);
  x = x.to(GetParam());
  const CentralMoments expected = reference_moments(x);
  std::vector<std::size_t> order{0, 1, 2, 3, 4};
  do {
    CentralMoments merged;
    for (const std::size_t i : order)
      merge(merged, compute_moments(x.slice(0, cuts[i], cuts[i + 1])));
    expect_moments(merged, expected, 64);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(CentralMoments, accumulate_without_changing_other_sums) {
  at::manual_seed(25);
  const at::Tensor a = at::randn({10'000}), b = at::randn({333}) - 2;
  ops::StatisticsCasts plain{{testing::float_scale(3)}, {FormatId::e4m3}};
  ops::StatisticsCasts options = plain;
  options.moments = true;
  at::Tensor with = ops::empty_statistics(1, at::kCPU);
  at::Tensor without = ops::empty_statistics(1, at::kCPU);
  for (const at::Tensor& x : {a, b}) {
    ops::accumulate_statistics(x, options, with);
    ops::accumulate_statistics(x, plain, without);
  }
  expect_moments(typed(with, 1).tensor().moments, reference_moments(at::cat({a, b})), 64);
  EXPECT_EQ(typed(without, 1).tensor().moments.count, 0);
  with.slice(0, kOnePassWords, kTensorSumsWords).zero_();
  EXPECT_TRUE(at::equal(with, without));
}

TEST(CentralMoments, do_not_depend_on_the_number_of_threads) {
  at::manual_seed(26);
  const at::Tensor x = at::randn({700'001}) + 3;
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const CentralMoments one = compute_moments(x);
  at::set_num_threads(3);
  const CentralMoments three = compute_moments(x);
  at::set_num_threads(threads);
  EXPECT_EQ(one.mean, three.mean);
  EXPECT_EQ(one.m4, three.m4);
}

TEST(CentralMoments, refuse_an_accumulator_of_another_size) {
  const auto handle = c10::Dispatcher::singleton()
                          .findSchemaOrThrow("telens::accumulate_central_moments", "")
                          .typed<void(const at::Tensor&, at::Tensor&)>();
  at::Tensor wrong = at::zeros({kTensorSumsWords + 1}, at::kLong);
  EXPECT_THROW(handle.call(at::ones({3}), wrong), ShapeError);
}

}  // namespace
}  // namespace telens
