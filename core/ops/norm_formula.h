// How norms measure rows whose squares or deviations are no FP32 numbers, on every device. No
// LibTorch.
#pragma once

#include <cmath>

#include "core/formats/formats.h"
#include "core/formats/host_device.h"

namespace telens::ops {

// The factor of a row of large numbers. Deviations from a mean of FP32 numbers lie below
// 2^129: below 2^33 in these units, so that their squares, and sums of 2^61 of them, are FP32
// numbers. A row whose squares overflow in units of 1 has one of at least 2^128 / columns there,
// 2^-64 / columns here, which is far above the smallest.
inline constexpr float kLargeRowUnit = 0x1p-96F;

// A deviation is at most sqrt(columns) / rstd, so from this rstd on below 2^128 in any row that
// there is memory for.
inline constexpr float kSmallestOrdinaryRstd = 0x1p-96F;

// Normalizes a row: (x * unit - mean) * rstd. The unit is 1, which changes no bit, where no
// difference can overflow.
struct RowFactors {
  float unit;
  float mean;
  float rstd;

  static TELENS_HOST_DEVICE RowFactors of(float mean, float rstd) {
    if (!(rstd < kSmallestOrdinaryRstd)) return {1.0F, mean, rstd};
    return {kLargeRowUnit, mean * kLargeRowUnit, rstd * (1.0F / kLargeRowUnit)};
  }
};

// The mean of a row that was measured in units. That of equal numbers at the end of the range may
// be rounded to one beyond it; Inf and NaN stay what they are.
TELENS_HOST_DEVICE inline float mean_of_row(float in_units, float unit) {
  const float mean = in_units / unit;
  const bool rounded_beyond = std::fabs(mean) > FP32::kMax && std::fabs(in_units) <= FP32::kMax;
  return rounded_beyond ? std::copysign(FP32::kMax, mean) : mean;
}

// For a row whose variance was measured in units. In large ones eps is nothing, which a row of
// equal numbers needs: no rstd is larger than that of eps alone.
TELENS_HOST_DEVICE inline float rstd_of_row(float variance, float eps, float unit) {
  if (unit == 1.0F) return 1.0F / std::sqrt(variance + eps);
  const float rstd = 1.0F / std::sqrt(variance) * unit;
  const float largest = 1.0F / std::sqrt(eps);
  return rstd > largest ? largest : rstd;
}

}  // namespace telens::ops
