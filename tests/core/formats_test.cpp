#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/formats/convert.h"
#include "core/formats/dispatch.h"
#include "tests/core/format_reference.h"
#include "tests/core/same_bits.h"
#include "tests/core/special_values.h"

namespace telens::testing {
namespace {

constexpr std::array kBothSaturations{Saturation::saturating, Saturation::non_saturating};

std::uint32_t get_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

std::string describe(float value) { return fmt::format("{} (0x{:08x})", value, get_bits(value)); }

// Compares encode with a search through all values, for every number and both kinds of saturation.
template <typename Format>
::testing::AssertionResult encodes_like_the_reference(const std::vector<float>& numbers) {
  const NearestCode<Format> nearest;
  for (const Saturation saturation : kBothSaturations) {
    std::vector<typename Format::Bits> codes;
    for (const float number : numbers) codes.push_back(encode<Format>(number, saturation));
    const auto result = same_bits<typename Format::Bits>(
        codes, [&](std::size_t i) { return nearest(numbers[i], saturation); },
        [&](std::size_t i) { return describe(numbers[i]); });
    if (!result) return result;
  }
  return ::testing::AssertionSuccess();
}

template <typename Format>
std::vector<float> every_value_of() {
  std::vector<float> values;
  for (std::uint32_t code = 0; code < (1U << Format::kWidth); ++code) {
    values.push_back(decode<Format>(static_cast<typename Format::Bits>(code)));
  }
  return values;
}

template <typename Format>
class Formats : public ::testing::Test {};

using NarrowFormats = ::testing::Types<E4M3, E5M2, E2M1, E3M2, E2M3, BF16, FP16>;
TYPED_TEST_SUITE(Formats, NarrowFormats);

TYPED_TEST(Formats, decoding_matches_the_definition_for_every_code) {
  using Format = TypeParam;
  for (std::uint32_t code = 0; code < (1U << Format::kWidth); ++code) {
    const float value = decode<Format>(static_cast<typename Format::Bits>(code));
    const std::uint32_t magnitude = code & Format::kMagnitudeMask;
    ASSERT_EQ(std::signbit(value), (code & Format::kSignMask) != 0) << fmt::format("0x{:x}", code);
    if (magnitude <= Format::kMaxCode) {
      ASSERT_EQ(std::fabs(value), value_by_definition<Format>(magnitude))
          << fmt::format("0x{:x}", code);
    } else if (Format::kHasInfinity && magnitude == Format::kTopExponentCode) {
      ASSERT_TRUE(std::isinf(value)) << fmt::format("0x{:x}", code);
    } else {
      ASSERT_EQ(get_bits(value) & FP32::kMagnitudeMask, FP32::kNanCode)
          << fmt::format("0x{:x}", code);
    }
  }
}

TYPED_TEST(Formats, encoding_inverts_decoding) {
  using Format = TypeParam;
  for (std::uint32_t code = 0; code < (1U << Format::kWidth); ++code) {
    const auto bits = static_cast<typename Format::Bits>(code);
    const float value = decode<Format>(bits);
    if (std::isnan(value)) continue;
    ASSERT_EQ(encode<Format>(value, Saturation::non_saturating), bits) << describe(value);
  }
}

TYPED_TEST(Formats, encoding_every_bf16_value_rounds_to_nearest_even) {
  EXPECT_TRUE(encodes_like_the_reference<TypeParam>(every_value_of<BF16>()));
}

TYPED_TEST(Formats, encoding_every_fp16_value_rounds_to_nearest_even) {
  EXPECT_TRUE(encodes_like_the_reference<TypeParam>(every_value_of<FP16>()));
}

TYPED_TEST(Formats, encoding_fp32_values_around_every_tie_rounds_to_nearest_even) {
  EXPECT_TRUE(encodes_like_the_reference<TypeParam>(numbers_around_every_decision<TypeParam>()));
}

TYPED_TEST(Formats, encoding_special_values_rounds_to_nearest_even) {
  std::vector<float> values;
  for (const auto& special : special_codes<FP32>()) values.push_back(decode<FP32>(special.code));
  EXPECT_TRUE(encodes_like_the_reference<TypeParam>(values));
}

TYPED_TEST(Formats, saturating_encode_maps_infinity_to_largest_value) {
  using Format = TypeParam;
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(encode<Format>(infinity, Saturation::saturating), Format::kMaxCode);
  EXPECT_EQ(encode<Format>(-infinity, Saturation::saturating),
            Format::kMaxCode | Format::kSignMask);
}

TYPED_TEST(Formats, nan_and_its_sign_survive_every_format_with_nan) {
  using Format = TypeParam;
  for (const std::uint32_t bits : {0x7fc00000U, 0xffc00000U, 0x7f800001U, 0xffffffffU}) {
    for (const Saturation saturation : kBothSaturations) {
      const auto code = encode<Format>(bits_as<float>(bits), saturation);
      if constexpr (Format::kHasNan) {
        EXPECT_TRUE(std::isnan(decode<Format>(code)));
        EXPECT_EQ((code & Format::kSignMask) != 0, bits >> 31 != 0);
      } else {
        EXPECT_EQ(decode<Format>(code), Format::kMax);
      }
    }
  }
}

TEST(FormatConstants, match_the_specifications) {
  EXPECT_EQ(E4M3::kMax, 448.0F);
  EXPECT_EQ(E5M2::kMax, 57344.0F);
  EXPECT_EQ(E2M1::kMax, 6.0F);
  EXPECT_EQ(E3M2::kMax, 28.0F);
  EXPECT_EQ(E2M3::kMax, 7.5F);
  EXPECT_EQ(FP16::kMax, 65504.0F);
  EXPECT_EQ(FP32::kMax, std::numeric_limits<float>::max());
  EXPECT_EQ(FP32::kSmallestNormal, std::numeric_limits<float>::min());
  EXPECT_EQ(FP32::kSmallestSubnormal, std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(decode<E4M3>(E4M3::kMaxCode), E4M3::kMax);
  EXPECT_EQ(decode<E4M3>(E4M3::kSmallestNormalCode), E4M3::kSmallestNormal);
  EXPECT_EQ(decode<E4M3>(E4M3::kSmallestSubnormalCode), E4M3::kSmallestSubnormal);
  EXPECT_EQ(encode<E4M3>(std::nanf(""), Saturation::saturating), 0x7f);
  EXPECT_EQ(encode<E4M3>(-std::nanf(""), Saturation::saturating), 0xff);
}

TEST(Conversions, are_constant_expressions) {
  static_assert(decode<E4M3>(0x7e) == 448.0F);
  static_assert(encode<E5M2>(1e9F, Saturation::non_saturating) == 0x7c);
  static_assert(encode<E8M0>(3.0F, Saturation::saturating) == 129);
}

TEST(Fp32AsAFormat, preserves_every_number) {
  for (const auto& special : special_codes<FP32>()) {
    const float value = decode<FP32>(special.code);
    if (std::isnan(value)) continue;
    EXPECT_EQ(get_bits(value), special.code) << special.name;
    EXPECT_EQ(encode<FP32>(value, Saturation::non_saturating), special.code) << special.name;
  }
  EXPECT_EQ(encode<FP32>(-INFINITY, Saturation::saturating), 0xff7fffffU);
}

TEST(BlockScales, decode_to_powers_of_two) {
  for (int code = 0; code < E8M0::kNanCode; ++code) {
    ASSERT_EQ(decode<E8M0>(static_cast<std::uint8_t>(code)), std::ldexp(1.0, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(decode<E8M0>(E8M0::kNanCode)));
}

TEST(BlockScales, round_according_to_their_mode) {
  for (int exponent = -127; exponent <= 127; ++exponent) {
    const auto power = static_cast<float>(std::ldexp(1.0, exponent));
    const int code = exponent + 127;
    const int next = std::min(code + 1, int{E8M0::kMaxCode});
    const struct {
      float value;
      int up, floor, nearest;
    } cases[] = {
        {power, code, code, code},
        {std::nextafter(power, INFINITY), next, code, code},
        {std::nextafter(power * 1.5F, 0.0F), next, code, code},
        {power * 1.5F, next, code, next},
        {std::nextafter(power * 1.5F, INFINITY), next, code, next},
    };
    for (const auto& [value, up, floor, nearest] : cases) {
      const auto encoded = [&, number = value](ScaleRounding rounding) {
        return int{encode<E8M0>(number, Saturation::saturating, rounding)};
      };
      ASSERT_EQ(encoded(ScaleRounding::up), up) << describe(value);
      ASSERT_EQ(encoded(ScaleRounding::floor), floor) << describe(value);
      ASSERT_EQ(encoded(ScaleRounding::nearest), nearest) << describe(value);
    }
  }
}

TEST(BlockScales, out_of_range_values_saturate_or_become_nan) {
  for (const ScaleRounding rounding :
       {ScaleRounding::up, ScaleRounding::floor, ScaleRounding::nearest}) {
    const auto saturated = [&](float value) {
      return int{encode<E8M0>(value, Saturation::saturating, rounding)};
    };
    const auto exact = [&](float value) {
      return int{encode<E8M0>(value, Saturation::non_saturating, rounding)};
    };
    EXPECT_EQ(saturated(0.0F), 0);
    EXPECT_EQ(saturated(-0.0F), 0);
    EXPECT_EQ(saturated(FP32::kSmallestSubnormal), 0);
    EXPECT_EQ(saturated(INFINITY), E8M0::kMaxCode);
    EXPECT_EQ(exact(INFINITY), E8M0::kNanCode);
    EXPECT_EQ(saturated(FP32::kMax), E8M0::kMaxCode);
    EXPECT_EQ(exact(FP32::kMax),
              rounding == ScaleRounding::floor ? E8M0::kMaxCode : E8M0::kNanCode);
    EXPECT_EQ(saturated(-1.0F), E8M0::kNanCode);
    EXPECT_EQ(saturated(-INFINITY), E8M0::kNanCode);
    EXPECT_EQ(saturated(std::nanf("")), E8M0::kNanCode);
    EXPECT_EQ(saturated(-std::nanf("")), E8M0::kNanCode);
  }
}

TEST(Dispatch, calls_the_visitor_with_the_format_of_the_id) {
  for (const FormatId id : {FormatId::e4m3, FormatId::e5m2, FormatId::e2m1, FormatId::e8m0,
                            FormatId::bf16, FormatId::fp16, FormatId::fp32}) {
    EXPECT_EQ(dispatch_format(id, []<typename Format>() { return Format::kId; }), id);
  }
}

TEST(Dispatch, rejects_unsupported_formats_by_name) {
  const auto visit = []<typename Format>() { return Format::kId; };
  EXPECT_EQ(dispatch_fp8_format(FormatId::e5m2, "cast", visit), FormatId::e5m2);
  EXPECT_EQ(dispatch_high_precision_format(FormatId::fp16, "cast", visit), FormatId::fp16);
  const auto get_message = [&](auto&& call) -> std::string {
    try {
      call();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(get_message([&] { dispatch_fp8_format(FormatId::bf16, "cast", visit); }),
              ::testing::AllOf(::testing::HasSubstr("cast"), ::testing::HasSubstr("BF16")));
  EXPECT_THAT(get_message([&] { dispatch_high_precision_format(FormatId::e2m1, "cast", visit); }),
              ::testing::AllOf(::testing::HasSubstr("cast"), ::testing::HasSubstr("E2M1")));
  EXPECT_THAT(get_message([&] { dispatch_format(static_cast<FormatId>(99), visit); }),
              ::testing::HasSubstr("99"));
}

}  // namespace
}  // namespace telens::testing
