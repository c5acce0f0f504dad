// How norms measure rows whose squares or deviations do not fit in FP32, on every device. No
// LibTorch.
#pragma once

#include <cmath>

#include "core/formats/formats.h"
#include "core/formats/host_device.h"

namespace telens::ops {

// The factor for a row of large numbers. Deviations from a mean of FP32 numbers are below 2^129,
// which is 2^33 in these units, so their squares, and sums of 2^61 squares, fit in FP32. A row
// whose squares overflow in units of 1 has a square of at least 2^128 / columns in units of 1, and
// 2^-64 / columns in these units, which is far above the smallest FP32 number.
inline constexpr float kLargeRowUnit = 0x1p-96F;

// A deviation is at most sqrt(columns) / rstd. From this rstd on, it is below 2^128 in any row that
// fits in memory.
inline constexpr float kSmallestOrdinaryRstd = 0x1p-96F;

// Normalizes a row: (x * unit - mean) * rstd. The unit is 1, which changes no bit, if no difference
// can overflow.
struct RowFactors {
  float unit;
  float mean;
  float rstd;

  static TELENS_HOST_DEVICE RowFactors of(float mean, float rstd) {
    if (!(rstd < kSmallestOrdinaryRstd)) return {1.0F, mean, rstd};
    return {kLargeRowUnit, mean * kLargeRowUnit, rstd * (1.0F / kLargeRowUnit)};
  }
};

// Returns the mean of a row that was measured in units. The mean of equal numbers at the end of the
// range may round to a number beyond it, and is then clamped to the range. Inf and NaN stay
// unchanged.
TELENS_HOST_DEVICE inline float mean_of_row(float in_units, float unit) {
  const float mean = in_units / unit;
  const bool rounded_beyond = std::fabs(mean) > FP32::kMax && std::fabs(in_units) <= FP32::kMax;
  return rounded_beyond ? std::copysign(FP32::kMax, mean) : mean;
}

// Returns the rstd of a row whose variance was measured in units. In large units eps vanishes, but
// a row of equal numbers needs it: rstd is at most 1 / sqrt(eps).
TELENS_HOST_DEVICE inline float rstd_of_row(float variance, float eps, float unit) {
  if (unit == 1.0F) return 1.0F / std::sqrt(variance + eps);
  const float rstd = 1.0F / std::sqrt(variance) * unit;
  const float largest = 1.0F / std::sqrt(eps);
  return rstd > largest ? largest : rstd;
}

}  // namespace telens::ops
