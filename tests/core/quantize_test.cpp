// quantize_fp8, dequantize_fp8, decode_fp8 and amax against the scalar formats, bit for bit, on
// every SIMD target of this processor.
#include "core/ops/quantize.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "core/kernels/cpu/gemm/decode_row_by_row.h"
#include "core/kernels/cpu/simd_target.h"
#include "tests/core/format_reference.h"
#include "tests/core/same_bits.h"
#include "tests/core/special_values.h"

namespace telens::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::array kFp8Formats{FormatId::e4m3, FormatId::e5m2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Usual scales, extreme ones that cause over- and underflow, and invalid ones, which no recipe
// should produce.
const std::vector<float> kScales{1.0F,       0.37F,      448.0F / 3.0F, 0x1p-12F,
                                 0x1p30F,    1e38F,      1e-38F,        FP32::kSmallestSubnormal,
                                 FP32::kMax, 0.0F,       -0.0F,         -2.5F,
                                 kInfinity,  -kInfinity, std::nanf("")};

template <typename Format>
constexpr at::ScalarType kDtype = Format::kId == FormatId::bf16   ? at::kBFloat16
                                  : Format::kId == FormatId::fp16 ? at::kHalf
                                                                  : at::kFloat;

template <typename Bits>
at::Tensor get_tensor(const std::vector<Bits>& codes, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(codes.size())}, dtype);
  std::copy(codes.begin(), codes.end(), static_cast<Bits*>(tensor.mutable_data_ptr()));
  return tensor;
}

template <typename Bits>
std::span<const Bits> get_codes(const at::Tensor& contiguous) {
  EXPECT_TRUE(contiguous.is_contiguous());
  return {static_cast<const Bits*>(contiguous.const_data_ptr()),
          static_cast<std::size_t>(contiguous.numel())};
}

at::Tensor one(float value) { return at::full({1}, value, at::kFloat); }

std::uint32_t get_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

// The result that quantize_fp8 promises for one element.
template <typename Output>
std::uint8_t reference_code(float x, float scale) {
  const auto magnitude = encode<Output>(std::fabs(x) * std::fabs(scale), Saturation::saturating) &
                         Output::kMagnitudeMask;
  return magnitude | (std::signbit(x) != std::signbit(scale) ? Output::kSignMask : 0);
}

// The result that dequantize_fp8 promises for one element.
template <typename Input, typename Output>
typename Output::Bits reference_value(std::uint8_t code, float scale) {
  using Bits = typename Output::Bits;
  const float x = decode<Input>(code);
  const Bits magnitude =
      encode<Output>(std::fabs(x) * std::fabs(scale), Saturation::non_saturating) &
      Output::kMagnitudeMask;
  return magnitude | (std::signbit(x) != std::signbit(scale) ? Output::kSignMask : Bits{0});
}

template <typename Format>
std::vector<typename Format::Bits> every_code() {
  std::vector<typename Format::Bits> codes;
  for (std::uint32_t code = 0; code < (1U << Format::kWidth); ++code) {
    codes.push_back(static_cast<typename Format::Bits>(code));
  }
  return codes;
}

// All codes of BF16 and FP16. For FP32: the special values and the values around every rounding
// decision.
template <typename Format>
std::vector<typename Format::Bits> test_codes() {
  if constexpr (Format::kWidth == 16) {
    return every_code<Format>();
  } else {
    std::vector<std::uint32_t> codes;
    for (const auto& special : special_codes<FP32>()) codes.push_back(special.code);
    for (const float number : numbers_around_every_decision<E4M3>()) {
      codes.push_back(get_bits(number));
    }
    for (const float number : numbers_around_every_decision<E5M2>()) {
      codes.push_back(get_bits(number));
    }
    return codes;
  }
}

template <typename Input>
void expect_bits_of_encode() {
  const auto codes = test_codes<Input>();
  const at::Tensor x = get_tensor(codes, kDtype<Input>);
  for (const FormatId output : kFp8Formats) {
    for (const float scale : kScales) {
      const at::Tensor quantized = ops::quantize_fp8(x, one(scale), std::nullopt, output);
      dispatch_fp8_format(output, "test", [&]<typename Output>() {
        EXPECT_TRUE(same_bits(
            get_codes<std::uint8_t>(quantized),
            [&](std::size_t i) { return reference_code<Output>(decode<Input>(codes[i]), scale); },
            [&](std::size_t i) {
              return fmt::format("0x{:x} ({}) times {}", codes[i], decode<Input>(codes[i]), scale);
            }))
            << get_name(Input::kId) << " to " << get_name(output);
      });
    }
  }
}

template <typename Input>
void expect_values_of_decode(at::ScalarType dtype) {
  const auto codes = every_code<Input>();
  const at::Tensor tensor = get_tensor(codes, at::kByte);
  const auto describe = [&](std::size_t i) { return fmt::format("code 0x{:02x}", codes[i]); };
  const auto compare = [&]<typename Output>(const at::Tensor& values, float scale) {
    EXPECT_TRUE(same_bits(
        get_codes<typename Output::Bits>(values),
        [&](std::size_t i) { return reference_value<Input, Output>(codes[i], scale); }, describe))
        << get_name(Input::kId) << " to " << get_name(Output::kId) << " times " << scale;
  };
  const auto compare_as_dtype = [&](const at::Tensor& values, float scale) {
    if (dtype == at::kBFloat16) return compare.template operator()<BF16>(values, scale);
    if (dtype == at::kHalf) return compare.template operator()<FP16>(values, scale);
    compare.template operator()<FP32>(values, scale);
  };
  for (const float scale : kScales) {
    compare_as_dtype(ops::dequantize_fp8(tensor, one(scale), Input::kId, dtype), scale);
  }
  if (dtype != at::kHalf) compare_as_dtype(ops::decode_fp8(tensor, Input::kId, dtype), 1.0F);
}

// Every test runs once on each SIMD target.
class Quantize : public ::testing::TestWithParam<kernels::SimdTarget> {
 private:
  kernels::ScopedSimdTarget target_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(OnEveryTarget, Quantize, ::testing::ValuesIn(kernels::simd_targets()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Quantize, gives_the_bits_of_encode_for_every_bf16_value) { expect_bits_of_encode<BF16>(); }

TEST_P(Quantize, gives_the_bits_of_encode_for_every_fp16_value) { expect_bits_of_encode<FP16>(); }

TEST_P(Quantize, gives_the_bits_of_encode_for_fp32_values_around_every_tie) {
  expect_bits_of_encode<FP32>();
}

TEST_P(Quantize, gives_the_same_codes_at_every_length) {
  const at::Tensor x = at::randn({200}).to(at::kBFloat16);
  const at::Tensor all = ops::quantize_fp8(x, one(100.0F), std::nullopt, FormatId::e4m3);
  for (std::int64_t length = 0; length <= x.numel(); ++length) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
      const at::Tensor part = x.slice(0, x.numel() - length).to(dtype);
      at::Tensor amax = at::zeros({1}, at::kFloat);
      const at::Tensor codes = ops::quantize_fp8(part, one(100.0F), amax, FormatId::e4m3);
      ASSERT_TRUE(codes.equal(all.slice(0, x.numel() - length))) << length;
      const float largest = length == 0 ? 0.0F : part.abs().max().item<float>();
      ASSERT_EQ(amax.item<float>(), largest) << length;
      ASSERT_EQ(ops::amax(part).item<float>(), largest) << length;
    }
  }
}

TEST_P(Quantize, gives_the_same_codes_and_amax_with_any_number_of_threads) {
  const int threads = at::get_num_threads();
  const at::Tensor x = at::randn({1000, 1003}).to(at::kBFloat16);
  at::Tensor amax_of_one = at::zeros({}, at::kFloat);
  at::Tensor amax_of_many = at::zeros({}, at::kFloat);
  at::set_num_threads(1);
  const at::Tensor by_one = ops::quantize_fp8(x, one(3.0F), amax_of_one, FormatId::e5m2);
  at::set_num_threads(4);
  const at::Tensor by_many = ops::quantize_fp8(x, one(3.0F), amax_of_many, FormatId::e5m2);
  at::set_num_threads(threads);
  EXPECT_TRUE(by_one.equal(by_many));
  EXPECT_EQ(amax_of_one.item<float>(), amax_of_many.item<float>());
}

TEST_P(Quantize, keeps_the_larger_amax_and_never_loses_a_nan) {
  const auto amax_after = [](float before, std::vector<float> values, at::ScalarType dtype) {
    at::Tensor amax = one(before);
    ops::quantize_fp8(at::tensor(values).to(dtype), one(1.0F), amax, FormatId::e4m3);
    return amax.item<float>();
  };
  const float nan = std::nanf("");
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    EXPECT_EQ(amax_after(0.0F, {1.0F, -3.0F, 2.0F}, dtype), 3.0F);
    EXPECT_EQ(amax_after(5.0F, {1.0F, -3.0F}, dtype), 5.0F);
    EXPECT_EQ(amax_after(5.0F, {}, dtype), 5.0F);
    EXPECT_EQ(amax_after(0.0F, {1.0F, -kInfinity}, dtype), kInfinity);
    EXPECT_TRUE(std::isnan(amax_after(0.0F, {1.0F, nan, kInfinity}, dtype)));
    EXPECT_TRUE(std::isnan(amax_after(7.0F, {-nan}, dtype)));
    EXPECT_TRUE(std::isnan(amax_after(nan, {1.0F}, dtype)));
  }
}

TEST_P(Quantize, amax_is_the_largest_magnitude_of_special_values) {
  const auto codes = special_codes<FP32>();
  for (const auto& first : codes) {
    const std::vector<std::uint32_t> pair{first.code, get_bits(-1.0F)};
    const float value = decode<FP32>(first.code);
    const float amax = ops::amax(get_tensor(pair, at::kFloat)).item<float>();
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(amax)) << first.name;
    } else {
      EXPECT_EQ(amax, std::max(std::fabs(value), 1.0F)) << first.name;
    }
  }
  EXPECT_EQ(ops::amax(at::empty({0, 3}, at::kHalf)).item<float>(), 0.0F);
}

TEST_P(Quantize, takes_views_and_returns_contiguous_codes) {
  const at::Tensor x = at::randn({37, 70}).to(at::kBFloat16);
  const at::Tensor views[] = {x.t(),
                              x.slice(1, 3, 50),
                              x.slice(0, 0, 37, 3),
                              x.select(0, 2),
                              x.view({37, 7, 10}).permute({2, 0, 1}),
                              x.select(0, 2).select(0, 5),
                              x.slice(0, 0, 1).expand({5, 70})};
  for (const at::Tensor& view : views) {
    at::Tensor amax = at::zeros({}, at::kFloat);
    const at::Tensor codes = ops::quantize_fp8(view, one(50.0F), amax, FormatId::e4m3);
    EXPECT_TRUE(codes.is_contiguous());
    EXPECT_EQ(codes.sizes(), view.sizes());
    EXPECT_TRUE(codes.equal(ops::quantize_fp8(view.contiguous(), one(50.0F), {}, FormatId::e4m3)));
    EXPECT_EQ(amax.item<float>(), view.abs().max().item<float>());
    EXPECT_EQ(ops::amax(view).item<float>(), amax.item<float>());
  }
}

TEST_P(Quantize, both_orientations_are_views_of_the_same_storage) {
  const at::Tensor x = at::randn({37, 70}).to(at::kBFloat16);
  at::Tensor amax = at::zeros({}, at::kFloat);
  const auto [codes, transposed] = ops::quantize_fp8_both(x, one(50.0F), amax, FormatId::e5m2);
  EXPECT_TRUE(codes.equal(ops::quantize_fp8(x, one(50.0F), {}, FormatId::e5m2)));
  EXPECT_TRUE(transposed.equal(codes.t()));
  EXPECT_TRUE(transposed.is_alias_of(codes));
  EXPECT_EQ(amax.item<float>(), x.abs().max().item<float>());
}

TEST_P(Quantize, transposes_codes_as_quantizing_to_both_orientations_does) {
  const at::Tensor x = at::randn({37, 70});
  const auto [codes, transposed] = ops::quantize_fp8_both(x, one(50.0F), {}, FormatId::e4m3);
  const at::Tensor later = ops::transpose_codes(codes);
  EXPECT_TRUE(later.equal(transposed));
  EXPECT_EQ(later.strides(), transposed.strides());
  EXPECT_THROW(ops::transpose_codes(x), ShapeError);
  EXPECT_THROW(ops::transpose_codes(codes.flatten()), ShapeError);
}

TEST_P(Quantize, decoding_every_code_gives_its_value) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    expect_values_of_decode<E4M3>(dtype);
    expect_values_of_decode<E5M2>(dtype);
  }
}

TEST_P(Quantize, decoding_keeps_the_strides_of_dense_views) {
  const at::Tensor codes = ops::quantize_fp8(at::randn({37, 70}), one(50.0F), {}, FormatId::e4m3);
  const at::Tensor values = ops::decode_fp8(codes, FormatId::e4m3, at::kFloat);
  const at::Tensor transposed = ops::decode_fp8(codes.t(), FormatId::e4m3, at::kFloat);
  EXPECT_EQ(transposed.strides(), codes.t().strides());
  EXPECT_TRUE(transposed.equal(values.t()));
  const at::Tensor part = codes.slice(1, 3, 60, 2);
  const at::Tensor of_part = ops::dequantize_fp8(part, one(1.0F), FormatId::e4m3, at::kFloat);
  EXPECT_TRUE(of_part.is_contiguous());
  EXPECT_TRUE(of_part.equal(values.slice(1, 3, 60, 2)));
  EXPECT_EQ(ops::decode_fp8(codes.slice(0, 0, 0), FormatId::e4m3, at::kFloat).sizes(),
            (at::IntArrayRef{0, 70}));
  EXPECT_EQ(ops::decode_fp8(codes.select(0, 1).select(0, 1), FormatId::e4m3, at::kFloat).dim(), 0);
}

TEST_P(Quantize, decoding_a_transposed_view_equals_decoding_a_copy) {
  // Tiles have 16 columns, vectors up to 32 elements, blocks 256 x 64: parts and multiples of each.
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {16, 16}, {16, 64}, {48, 16}, {80, 272}, {272, 80}, {304, 528}, {17, 32}, {0, 16}}) {
    const at::Tensor codes = at::randint(256, {rows, columns}, at::kByte);
    for (const FormatId format : kFp8Formats) {
      for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
        const at::Tensor values = kernels::decode_row_by_row(codes.t(), format, dtype);
        const at::Tensor expected = ops::decode_fp8(codes, format, dtype).t();
        const auto bits = dtype == at::kFloat ? at::kInt : at::kShort;
        EXPECT_TRUE(values.contiguous().view(bits).equal(expected.contiguous().view(bits)))
            << rows << " x " << columns << " " << get_name(format);
        EXPECT_EQ(values.is_contiguous(), rows % 16 == 0 || rows == 0);
      }
    }
  }
}

template <typename Call>
std::string get_error(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(QuantizeArguments, that_do_not_fit_are_named) {
  const at::Tensor x = at::zeros({4}, at::kFloat);
  const at::Tensor codes = at::zeros({4}, at::kByte);
  const auto quantize = [](const at::Tensor& input, const at::Tensor& scale,
                           std::optional<at::Tensor> amax, FormatId format) {
    return get_error([&] { ops::quantize_fp8(input, scale, amax, format); });
  };
  EXPECT_THAT(quantize(x.to(at::kDouble), one(1), {}, FormatId::e4m3), HasSubstr("Double"));
  EXPECT_THAT(quantize(x, x, {}, FormatId::e4m3), HasSubstr("scale has dtype Float and 4"));
  EXPECT_THAT(quantize(x, one(1), x.slice(0, 0, 1).to(at::kHalf), FormatId::e4m3),
              HasSubstr("amax has dtype Half"));
  EXPECT_THAT(quantize(x, one(1).to(at::kMeta), {}, FormatId::e4m3), HasSubstr("is on meta"));
  EXPECT_THAT(quantize(x, one(1), {}, FormatId::e2m1), HasSubstr("expected an FP8 format"));
  EXPECT_THAT(get_error([&] { ops::decode_fp8(x, FormatId::e4m3, at::kFloat); }),
              HasSubstr("codes have dtype Float"));
  EXPECT_THAT(get_error([&] { ops::decode_fp8(codes, FormatId::e4m3, at::kHalf); }),
              HasSubstr("expected BFloat16 or Float"));
  EXPECT_THAT(get_error([&] { ops::dequantize_fp8(codes, one(1), FormatId::e4m3, at::kInt); }),
              HasSubstr("Int"));
  EXPECT_THAT(get_error([&] { ops::amax(codes); }), HasSubstr("amax: x has dtype Byte"));
}

TEST(QuantizeOnMeta, gives_shapes_dtypes_and_strides_without_data) {
  const at::Tensor x = at::empty({3, 5}, at::TensorOptions(at::kMeta).dtype(at::kBFloat16));
  const at::Tensor scale = at::empty({1}, at::TensorOptions(at::kMeta).dtype(at::kFloat));
  const at::Tensor codes = ops::quantize_fp8(x.t(), scale, {}, FormatId::e4m3);
  EXPECT_EQ(codes.sizes(), (at::IntArrayRef{5, 3}));
  EXPECT_TRUE(codes.is_contiguous());
  EXPECT_EQ(codes.scalar_type(), at::kByte);
  const at::Tensor values = ops::dequantize_fp8(codes.t(), scale, FormatId::e4m3, at::kHalf);
  EXPECT_EQ(values.strides(), codes.t().strides());
  EXPECT_EQ(values.scalar_type(), at::kHalf);
  EXPECT_EQ(ops::decode_fp8(codes, FormatId::e4m3, at::kFloat).scalar_type(), at::kFloat);
  EXPECT_EQ(ops::amax(x).dim(), 0);
  EXPECT_THAT(get_error([&] { ops::quantize_fp8(codes, scale, {}, FormatId::e4m3); }),
              HasSubstr("x has dtype Byte"));
}

}  // namespace
}  // namespace telens::testing
