// The histogram kernels against counting one element after the other.
#include "core/ops/histogram.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/formats/dispatch.h"
#include "core/ops/histogram_layout.h"
#include "tests/core/special_values.h"

namespace telens {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Data {
  std::string name;
  at::Tensor x;
};

at::Tensor all_codes(at::ScalarType dtype) {
  const at::Tensor codes = at::arange(65536, at::kInt);
  if (dtype != at::kFloat) return codes.to(at::kShort).view(dtype);
  return codes.bitwise_left_shift(16).bitwise_or(12345).view(at::kFloat);
}

at::Tensor special_values() {
  std::vector<float> values;
  for (const testing::SpecialValue& each : testing::kSpecialValues) {
    values.push_back(bits_as<float>(each.bits));
    values.push_back(-bits_as<float>(each.bits));
  }
  return at::tensor(values, at::kFloat);
}

std::vector<Data> get_data(at::ScalarType dtype) {
  at::manual_seed(7);
  const auto normal = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
  const at::Tensor cube = normal({96, 130, 7});
  std::vector<Data> all{
      {"all codes", all_codes(dtype)},
      {"special values", special_values().to(dtype)},
      {"normal", normal({300'007})},
      {"random codes", all_codes(dtype).index_select(0, at::randint(0, 65536, {400'000}))},
      {"half zeros", normal({50'000}).relu()},
      {"zeros", at::zeros({700'001}, dtype)},
      {"negative zeros", at::full({3'000}, -0.0F, dtype)},
      {"constant", at::full({300'000}, 0.3F, dtype)},
      {"all NaN", at::full({9'000}, -kNan, dtype)},
      {"Inf of both signs", at::tensor({kInf, 1.0F, -kInf, kInf, 0.0F}).to(dtype)},
      {"subnormal", at::arange(1, 100, at::kInt).to(at::kShort).view(at::kBFloat16).to(dtype)},
      {"empty", at::empty({0}, dtype)},
      {"empty matrix", at::empty({4, 0, 3}, dtype)},
      {"scalar", at::scalar_tensor(-3.5, dtype)},
      {"transposed", cube.transpose(0, 1)},
      {"sliced", cube.slice(1, 3, 99, 2)},
      {"expanded", cube.select(2, 0).unsqueeze(-1).expand({96, 130, 5})},
      {"offset by one element", cube.view({-1}).slice(0, 1)},
  };
  for (const std::int64_t n : {1, 2, 7, 8, 9, 8191, 8193, 131'071, 131'072, 131'073}) {
    all.push_back({"normal of " + std::to_string(n), normal({n})});
  }
  return all;
}

// Counts by the definition of the bins, from the values only.
std::int64_t get_bin(float x, float smallest_normal) {
  if (std::isnan(x)) return 0;
  const int sign = std::signbit(x) ? -1 : 1;
  if (std::isinf(x)) return 257 + sign * 256;
  if (x == 0) return 257;
  if (std::fabs(x) < smallest_normal) return 257 + sign;
  return 257 + sign * (std::ilogb(x) + 126 + 2);
}

at::Tensor reference_exponents(const at::Tensor& x) {
  const float smallest_normal =
      x.scalar_type() == at::kHalf ? FP16::kSmallestNormal : FP32::kSmallestNormal;
  at::Tensor counts = ops::empty_exponent_histogram(x.device());
  auto* bins = counts.mutable_data_ptr<std::int64_t>();
  const at::Tensor values = x.to(at::kFloat).contiguous();
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    ++bins[get_bin(values.const_data_ptr<float>()[i], smallest_normal)];
  }
  return counts;
}

at::Tensor reference_codes(const at::Tensor& x) {
  const at::Tensor codes = x.contiguous().view({-1}).view(at::kShort).to(at::kLong);
  return at::bincount(codes.bitwise_and(0xffff), {}, kCodeBins);
}

at::Tensor get_exponents(const at::Tensor& x) {
  at::Tensor counts = ops::empty_exponent_histogram(x.device());
  ops::exponent_histogram(x, counts);
  return counts;
}

at::Tensor get_codes(const at::Tensor& x) {
  at::Tensor counts = ops::empty_code_histogram(x.device());
  ops::code_histogram(x, counts);
  return counts;
}

::testing::AssertionResult same_counts(const at::Tensor& got, const at::Tensor& expected) {
  for (std::int64_t bin = 0; bin < expected.numel(); ++bin) {
    const auto is = got[bin].item<std::int64_t>();
    const auto should = expected[bin].item<std::int64_t>();
    if (is != should) {
      return ::testing::AssertionFailure()
             << "bin " << bin << " has " << is << " elements, expected " << should;
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult equal_counts(const at::Tensor& got, const at::Tensor& expected) {
  return at::equal(got, expected) ? ::testing::AssertionSuccess() : same_counts(got, expected);
}

class HistogramTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(HistogramTest, exponents_are_counted_as_one_element_after_the_other) {
  for (const Data& data : get_data(GetParam())) {
    SCOPED_TRACE(data.name);
    EXPECT_TRUE(equal_counts(get_exponents(data.x), reference_exponents(data.x)));
  }
}

TEST_P(HistogramTest, codes_are_counted_as_one_element_after_the_other) {
  if (GetParam() == at::kFloat) GTEST_SKIP() << "FP32 has too many codes";
  for (const Data& data : get_data(GetParam())) {
    SCOPED_TRACE(data.name);
    EXPECT_TRUE(equal_counts(get_codes(data.x), reference_codes(data.x)));
  }
}

TEST_P(HistogramTest, parts_add_up_to_the_whole) {
  for (const Data& data : get_data(GetParam())) {
    SCOPED_TRACE(data.name);
    at::Tensor exponents = ops::empty_exponent_histogram(at::kCPU);
    at::Tensor codes = ops::empty_code_histogram(at::kCPU);
    for (const at::Tensor& part : data.x.reshape({-1}).tensor_split(3)) {
      ops::exponent_histogram(part, exponents);
      if (GetParam() != at::kFloat) ops::code_histogram(part, codes);
    }
    EXPECT_TRUE(equal_counts(exponents, get_exponents(data.x)));
    if (GetParam() != at::kFloat) {
      EXPECT_TRUE(equal_counts(codes, get_codes(data.x)));
    }
  }
}

TEST_P(HistogramTest, any_number_of_threads_gives_the_same_counts) {
  at::manual_seed(9);
  const at::Tensor x = at::randn({1 << 20}).to(GetParam());
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor exponents = get_exponents(x);
  const at::Tensor codes = GetParam() == at::kFloat ? at::Tensor() : get_codes(x);
  at::set_num_threads(4);
  EXPECT_TRUE(equal_counts(get_exponents(x), exponents));
  if (codes.defined()) {
    EXPECT_TRUE(equal_counts(get_codes(x), codes));
  }
  at::set_num_threads(threads);
}

TEST_P(HistogramTest, every_code_is_counted_in_the_bin_of_its_value) {
  const FormatId format = GetParam() == at::kBFloat16 ? FormatId::bf16
                          : GetParam() == at::kHalf   ? FormatId::fp16
                                                      : FormatId::fp32;
  dispatch_high_precision_format(format, "test", [&]<typename Format>() {
    constexpr int kStep = Format::kWidth == 32 ? 65521 : 1;  // a prime: fields and mantissas vary
    for (std::uint64_t code = 0; code < std::uint64_t{1} << Format::kWidth; code += kStep) {
      const auto bits = static_cast<typename Format::Bits>(code);
      ASSERT_EQ(get_exponent_bin<Format>(bits),
                get_bin(decode<Format>(bits), Format::kSmallestNormal))
          << "code " << code;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(dtypes, HistogramTest,
                         ::testing::Values(at::kBFloat16, at::kHalf, at::kFloat),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

template <typename Call>
std::string get_shape_error(const Call& call) {
  try {
    call();
  } catch (const ShapeError& error) {
    return error.what();
  }
  return "no error";
}

TEST(HistogramErrorsTest, code_histogram_error_for_fp32_names_the_alternative) {
  at::Tensor counts = ops::empty_code_histogram(at::kCPU);
  EXPECT_THAT(get_shape_error([&] { ops::code_histogram(at::zeros({4}), counts); }),
              ::testing::HasSubstr("use exponent_histogram"));
}

TEST(HistogramErrorsTest, other_dtypes_and_counts_of_another_shape_are_refused) {
  const at::Tensor x = at::zeros({4}, at::kBFloat16);
  at::Tensor counts = ops::empty_exponent_histogram(at::kCPU);
  EXPECT_THAT(get_shape_error([&] { ops::exponent_histogram(x.to(at::kDouble), counts); }),
              ::testing::HasSubstr("x has dtype Double"));
  EXPECT_THAT(get_shape_error([&] { ops::code_histogram(x, counts); }),
              ::testing::HasSubstr("counts is Long with 514 elements on cpu"));
  at::Tensor narrow = counts.to(at::kInt);
  EXPECT_THAT(get_shape_error([&] { ops::exponent_histogram(x, narrow); }),
              ::testing::HasSubstr("counts is Int with 514 elements"));
  at::Tensor strided = at::zeros({514, 2}, at::kLong).select(1, 0);
  EXPECT_THAT(get_shape_error([&] { ops::exponent_histogram(x, strided); }),
              ::testing::HasSubstr("expected contiguous Long"));
}

TEST(HistogramErrorsTest, meta_tensors_are_checked_and_nothing_is_counted) {
  const at::Tensor x = at::empty({4}, at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta));
  at::Tensor counts = ops::empty_exponent_histogram(at::kMeta);
  ops::exponent_histogram(x, counts);
  at::Tensor wrong = ops::empty_code_histogram(at::kMeta);
  EXPECT_THROW(ops::exponent_histogram(x, wrong), ShapeError);
  ops::code_histogram(x, wrong);
}

}  // namespace
}  // namespace telens
