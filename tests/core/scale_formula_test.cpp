// The formulas of scales against FP64, for every amax of BF16 and FP16 and for the ends of FP32's
// range.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/ops/scale_formula.h"
#include "tests/core/special_values.h"

namespace telens::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

// Magnitudes: of BF16, of FP16, the special values of FP32 with their neighbors, and NaN.
std::vector<float> every_amax() {
  std::vector<float> values;
  for (std::uint32_t code = 0; code <= BF16::kMagnitudeMask; ++code) {
    values.push_back(decode<BF16>(static_cast<std::uint16_t>(code)));
    values.push_back(decode<FP16>(static_cast<std::uint16_t>(code)));
  }
  for (const auto& special : special_codes<FP32>()) {
    values.push_back(decode<FP32>(special.code & FP32::kMagnitudeMask));
  }
  return values;
}

bool is_usable(float amax) { return std::isfinite(amax) && amax > 0; }

// 2^floor(log2(x)).
double power_below(double x) { return std::ldexp(1.0, std::ilogb(x)); }

// The quotient fp8_max / amax in double; if power_of_two, rounded down to a power of two. A
// quotient beyond FP32's range becomes `largest`.
double exact_scale(float amax, float fp8_max, bool power_of_two, float largest) {
  const double quotient = static_cast<double>(fp8_max) / amax;
  const double bounded = quotient > kLargest ? largest : quotient;
  return power_of_two ? power_below(bounded) : bounded;
}

void expect_scale(float scale, double exact, float amax) {
  ASSERT_TRUE(std::isnormal(scale)) << amax;
  // If a quotient just below a power of two is rounded up to it in FP32, the scale is this power.
  const bool is_next_power = scale == 2 * exact;
  ASSERT_TRUE(is_next_power || std::fabs(scale - exact) <= exact * 0x1p-24)
      << scale << " for an amax of " << amax << ", expected " << exact;
}

TEST(ScaleFormula, current_scaling_equals_the_double_quotient) {
  for (const float fp8_max : {E4M3::kMax, E5M2::kMax}) {
    for (const bool power_of_two : {false, true}) {
      for (const float largest : {kLargest, BF16::kMax, FP16::kMax}) {
        for (const float amax : every_amax()) {
          const float scale = current_scale(amax, fp8_max, 0, power_of_two, largest);
          if (!is_usable(amax)) {
            ASSERT_EQ(scale, 1.0F) << amax;
          } else {
            expect_scale(scale, exact_scale(amax, fp8_max, power_of_two, largest), amax);
          }
        }
      }
    }
  }
}

TEST(ScaleFormula, delayed_scaling_equals_the_double_quotient) {
  for (const bool power_of_two : {false, true}) {
    for (const int margin : {-3, 0, 2}) {
      for (const float amax : every_amax()) {
        const float scale = delayed_scale(amax, 3.0F, E4M3::kMax, margin, power_of_two);
        if (!is_usable(amax)) {
          ASSERT_EQ(scale, 3.0F) << amax;
          continue;
        }
        const double exact =
            std::ldexp(exact_scale(amax, E4M3::kMax, power_of_two, kLargest), -margin);
        expect_scale(scale, exact > kLargest ? kLargest : exact, amax);
      }
    }
  }
}

template <typename Format>
void expect_e8m0_scales() {
  for (const float amax : every_amax()) {
    if (!std::isfinite(amax)) continue;
    const std::uint8_t code = e8m0_scale<Format>(amax, ScaleRounding::up);
    ASSERT_NE(code, E8M0::kNanCode) << amax;
    const double scale = std::ldexp(1.0, code - E8M0::kBias);
    // The quotient amax / max is rounded to FP32 before it is rounded up.
    const double reach = scale * Format::kMax;
    ASSERT_LE(amax, reach * (1 + 0x1p-22)) << "overflows";
    if (code > 0 && amax > 0) {
      ASSERT_GT(amax, reach / 2 * (1 - 0x1p-22)) << "is not the smallest";
    }
    // The factor is exactly the reciprocal, also at both ends of E8M0's range.
    ASSERT_EQ(e8m0_factor(code) * scale, 1.0) << static_cast<int>(code);
  }
}

TEST(ScaleFormula, mxfp8_is_the_smallest_power_of_two_without_overflow) {
  expect_e8m0_scales<E4M3>();
  expect_e8m0_scales<E5M2>();
  EXPECT_EQ(e8m0_scale<E4M3>(kInfinity, ScaleRounding::up), E8M0::kMaxCode);
  EXPECT_EQ(e8m0_scale<E4M3>(0, ScaleRounding::up), 0);
}

// The block's scale is in E4M3 and the tensor's in FP32. If neither is at the end of its range, the
// scaled amax differs from 6 by at most half a step of E4M3.
TEST(ScaleFormula, nvfp4_maps_the_largest_block_to_the_largest_codes) {
  for (const float amax : every_amax()) {
    if (std::isnan(amax)) continue;  // the amax is taken of numbers other than NaN
    const TwoLevelScaling scaling = TwoLevelScaling::of(amax);
    const float factor = scaling.tensor_factor;
    if (!is_usable(amax)) {
      ASSERT_EQ(factor, 1.0F) << amax;
      continue;
    }
    ASSERT_TRUE(std::isfinite(factor) && factor > 0) << amax;
    const double exact = static_cast<double>(E4M3::kMax) * E2M1::kMax / amax;
    ASSERT_NEAR(factor, std::min<double>(exact, kLargest), exact * 0x1p-23) << amax;
    if (exact > kLargest) continue;  // the tensor's scale cannot be larger
    const auto [block, block_factor] = scaling.get_scale(amax);
    ASSERT_EQ(decode<E4M3>(block), E4M3::kMax) << amax;
    const float tensor_scale = scaling.tensor_scale;
    // The reciprocal of a factor above 2^126 is subnormal and so has fewer digits.
    const double digits = std::isnormal(tensor_scale) ? 0x1p-20 : 0x1p-18;
    ASSERT_NEAR(amax * static_cast<double>(block_factor), E2M1::kMax, 6 * digits) << amax;
  }
}

}  // namespace
}  // namespace telens::testing
