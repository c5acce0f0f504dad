// The statistics kernels against definitions, on every SIMD target that this processor has.
#include "core/ops/statistics.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "core/kernels/cpu/simd_target.h"
#include "core/ops/statistics_layout.h"
#include "tests/core/statistics_checks.h"
#include "tests/core/statistics_reference.h"

namespace telens {
namespace {

using namespace ops;  // the operators under test

using testing::Data;
using testing::expect_cast;
using testing::expect_counters_and_extremes;
using testing::expect_sums;
using testing::finite_special_values;
using testing::float_scale;
using testing::kInf;
using testing::kNan;
using testing::kSumsBound;
using testing::reference_cast;
using testing::reference_sums;
using testing::special_values;
using testing::typed;
using testing::with_values;

TensorSums compute_sums(const at::Tensor& x) { return typed(statistics(x), 0).tensor(); }

CastSums get_cast(const at::Tensor& x, FormatId format, float scale) {
  return typed(statistics(x, {{float_scale(scale)}, {format}}), 1).casts().front();
}

// Every code of a 16-bit dtype. For FP32: the same codes as upper halves, with lower halves that
// are hard to round.
at::Tensor all_codes(at::ScalarType dtype) {
  const at::Tensor codes = at::arange(65536, at::kInt);
  if (dtype != at::kFloat) return codes.to(at::kShort).view(dtype);
  const at::Tensor low = at::arange(65536, at::kInt).mul(40503).bitwise_and(0xffff);
  return codes.bitwise_left_shift(16).bitwise_or(low).view(at::kFloat);
}

std::vector<Data> special_data(at::ScalarType dtype) {
  at::manual_seed(7);
  const auto normal = [&](std::int64_t n) { return at::randn({n}).to(dtype); };
  std::vector<Data> all{
      {"all codes", all_codes(dtype)},
      {"special values", special_values(dtype)},
      {"special values but infinity and NaN", finite_special_values(dtype)},
      {"special values many times over", finite_special_values(dtype).repeat({200})},
      {"all codes shuffled and repeated",
       all_codes(dtype).index_select(0, at::randint(0, 65536, {200'000}))},
      {"normal", normal(300'007)},
      {"normal with NaN in front", with_values(normal(20'000), {{0, kNan}})},
      {"normal with NaN in the middle", with_values(normal(20'000), {{9'999, -kNan}})},
      {"normal with NaN at the end", with_values(normal(20'000), {{19'999, kNan}})},
      {"a NaN in every chunk", normal(100'000).index_fill(0, at::arange(0, 100'000, 8192), kNan)},
      {"+Inf", with_values(normal(10'000), {{5, kInf}, {9'000, kInf}})},
      {"both Inf", with_values(normal(10'000), {{5, kInf}, {9'998, -kInf}})},
      {"all NaN", at::full({9'000}, kNan, dtype)},
      {"all -Inf", at::full({9'000}, -kInf, dtype)},
      {"NaN and -0", with_values(at::full({70}, kNan, dtype), {{69, -0.0F}, {3, -0.0F}})},
      {"zeros", at::zeros({10'000}, dtype)},
      {"negative zeros", at::full({10'000}, -0.0F, dtype)},
      {"half zeros", normal(30'000).relu()},
      {"negative", normal(30'000).abs().neg()},
      {"positive", normal(30'000).abs()},
      {"constant", at::full({30'000}, 0.3F, dtype)},
      {"tiny", (at::randn({30'000}) * 1e-30).to(dtype)},
      {"huge", (at::randn({30'000}) * 1e30).to(dtype)},
      {"subnormal",
       at::arange(20'000, at::kInt).remainder(127).to(at::kShort).view(at::kBFloat16).to(dtype)},
      {"shifted", (at::randn({50'000}) + 100).to(dtype)},
      {"empty", at::empty({0}, dtype)},
      {"empty matrix", at::empty({4, 0, 3}, dtype)},
      {"scalar", at::scalar_tensor(-3.5, dtype)},
  };
  for (const std::int64_t n :
       {1, 2, 15, 31, 32, 33, 63, 64, 65, 8191, 8192, 8193, 131'071, 131'073}) {
    all.push_back({"normal of " + std::to_string(n), normal(n)});
  }
  if (dtype == at::kFloat) {
    all.push_back({"a mean of a million deviations", at::randn({50'000}) + 1e6});
    all.push_back({"FP32 subnormal", at::arange(20'000, at::kInt).view(at::kFloat)});
  }
  return all;
}

std::vector<Data> strided_data(at::ScalarType dtype) {
  at::manual_seed(8);
  const at::Tensor x = at::randn({96, 130, 7}).to(dtype);
  return {{"transposed", x.transpose(0, 1)},
          {"sliced", x.slice(1, 3, 99, 2)},
          {"columns", x.select(2, 4)},
          {"expanded", x.select(2, 0).unsqueeze(-1).expand({96, 130, 5})},
          {"offset by one element", x.view({-1}).slice(0, 1)}};
}

// Runs the body once per SIMD target.
void on_every_target(const std::function<void()>& body) {
  for (const kernels::SimdTarget& target : kernels::simd_targets()) {
    SCOPED_TRACE(target.name);
    const kernels::ScopedSimdTarget scope(target);
    body();
  }
}

class StatisticsOf : public ::testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, StatisticsOf,
                         ::testing::Values(at::kBFloat16, at::kHalf, at::kFloat),
                         [](const auto& dtype) { return c10::toString(dtype.param); });

TEST_P(StatisticsOf, special_data_match_definitions_on_every_simd_target) {
  for (const Data& data : special_data(GetParam())) {
    SCOPED_TRACE(data.name);
    const TensorSums expected = reference_sums(data.x);
    on_every_target([&] {
      const TensorSums got = compute_sums(data.x);
      expect_counters_and_extremes(got, expected);
      expect_sums(got, expected);
    });
  }
}

TEST_P(StatisticsOf, strides_do_not_change_statistics) {
  for (const Data& data : strided_data(GetParam())) {
    SCOPED_TRACE(data.name);
    const TensorSums expected = reference_sums(data.x);
    const TensorSums got = compute_sums(data.x);
    expect_counters_and_extremes(got, expected);
    expect_sums(got, expected);
    expect_cast(get_cast(data.x, FormatId::e4m3, 99), reference_cast(data.x, FormatId::e4m3, 99),
                kSumsBound);
  }
}

TEST_P(StatisticsOf, casts_match_encode_and_decode_on_every_simd_target) {
  for (const Data& data : special_data(GetParam())) {
    SCOPED_TRACE(data.name);
    for (const FormatId format : {FormatId::e4m3, FormatId::e5m2}) {
      for (const float scale : {1.0F, 123.4F, 0x1p-7F, 3e-30F, 7e29F}) {
        SCOPED_TRACE(std::string(get_name(format)) + " scale " + std::to_string(scale));
        const CastSums expected = reference_cast(data.x, format, scale);
        on_every_target(
            [&] { expect_cast(get_cast(data.x, format, scale), expected, kSumsBound); });
      }
    }
  }
}

// One special value among ordinary ones: in a vector, or among the elements after the last vector.
TEST_P(StatisticsOf, a_special_value_is_counted_at_any_position) {
  const at::Tensor ordinary = at::linspace(0.5, 2, 70).to(GetParam());
  const at::Tensor values = special_values(GetParam());
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    SCOPED_TRACE(::testing::Message() << values[i].item<float>() << ", value " << i);
    const at::Tensor x = ordinary.clone();
    for (const std::int64_t place : {0, 31, 69}) {
      if (place > 0) x[place - 1].copy_(ordinary[place - 1]);
      x[place].copy_(values[i]);
      const TensorSums got = compute_sums(x), expected = reference_sums(x);
      expect_counters_and_extremes(got, expected);
      expect_sums(got, expected);
      expect_cast(get_cast(x, FormatId::e4m3, 3), reference_cast(x, FormatId::e4m3, 3), kSumsBound);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// A whole vector of one value, so that its error is not averaged with others, and the vector code
// computes it.
TEST_P(StatisticsOf, error_of_every_code_equals_its_rounding_error) {
  const at::Tensor codes = all_codes(GetParam());
  const at::Tensor repeated = codes.unsqueeze(1).expand({-1, 32}).contiguous();
  for (const FormatId format : {FormatId::e4m3, FormatId::e5m2}) {
    for (std::int64_t i = 0; i < codes.numel(); i += 7) {
      const CastSums got = get_cast(repeated[i], format, 0x1.3p3F);
      const CastSums expected = reference_cast(repeated[i], format, 0x1.3p3F);
      if (!std::isfinite(expected.squared_error)) continue;
      ASSERT_NEAR(got.squared_error, expected.squared_error,
                  std::ldexp(expected.squared_error, -20))
          << "code " << i << " of " << get_name(format);
    }
  }
}

TEST_P(StatisticsOf, several_casts_equal_separate_casts) {
  const at::Tensor x = (at::randn({100'000}) * 20).to(GetParam());
  const StatisticsCasts casts{{float_scale(1), float_scale(40), float_scale(1e-4F)},
                              {FormatId::e4m3, FormatId::e4m3, FormatId::e5m2}};
  const auto together = typed(statistics(x, casts), 3);
  for (std::size_t i = 0; i < 3; ++i) {
    const at::Tensor alone = statistics(x, {{casts.scales[i]}, {casts.formats[i]}});
    const std::vector<std::int64_t> words = together.words();
    const std::int64_t* begin = words.data() + kTensorSumsWords + i * kCastSumsWords;
    EXPECT_TRUE(std::equal(begin, begin + kCastSumsWords,
                           alone.const_data_ptr<std::int64_t>() + kTensorSumsWords));
  }
}

TEST_P(StatisticsOf, the_number_of_threads_changes_no_bit) {
  const at::Tensor x = with_values(at::randn({1'000'003}).to(GetParam()), {{500'000, kInf}});
  const StatisticsCasts casts{{float_scale(70)}, {FormatId::e4m3}};
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor alone = statistics(x, casts);
  for (const int count : {2, 3, 5}) {
    at::set_num_threads(count);
    EXPECT_TRUE(at::equal(statistics(x, casts), alone)) << count << " threads";
  }
  at::set_num_threads(threads);
}

TEST(Statistics, empty_tensor_gives_the_neutral_accumulator) {
  const StatisticsCasts casts{{float_scale(2)}, {FormatId::e4m3}};
  EXPECT_TRUE(at::equal(statistics(at::empty({0}), casts), empty_statistics(1, at::kCPU)));
}

TEST(Statistics, on_meta_have_the_shape_of_the_words) {
  const auto meta = at::device(at::kMeta);
  const at::Tensor x = at::empty({3, 5}, meta.dtype(at::kBFloat16));
  const at::Tensor words =
      statistics(x, {{at::empty({1}, meta.dtype(at::kFloat))}, {FormatId::e5m2}});
  EXPECT_EQ(words.numel(), statistics_words(1));
  EXPECT_EQ(words.scalar_type(), at::kLong);
}

// The message of the error of the given type that the call throws.
template <typename E>
std::string get_message(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "(nothing was thrown)";
}

TEST(Statistics, unreadable_inputs_are_rejected_with_a_reason) {
  using ::testing::HasSubstr;
  const at::Tensor x = at::ones({4});
  EXPECT_THAT(get_message<ShapeError>([] { statistics(at::ones({4}, at::kDouble)); }),
              HasSubstr("x has dtype Double; expected BFloat16, Half or Float"));
  EXPECT_THAT(get_message<UsageError>([&] {
                statistics(x, {{float_scale(1)}, {}});
              }),
              HasSubstr("1 scales and 0 formats"));
  EXPECT_THAT(get_message<ShapeError>([&] {
                statistics(x, {{at::ones({2})}, {FormatId::e4m3}});
              }),
              HasSubstr("scale 0 has dtype Float and 2 elements"));
  EXPECT_THAT(get_message<UsageError>([&] {
                statistics(x, {{float_scale(1)}, {FormatId::e2m1}});
              }),
              HasSubstr("E4M3 (0) or E5M2 (1)"));
  at::Tensor accumulator = empty_statistics(1, at::kCPU);
  EXPECT_THAT(get_message<ShapeError>([&] { accumulate_statistics(x, {}, accumulator); }),
              HasSubstr("made for as many casts"));
}

}  // namespace
}  // namespace telens
