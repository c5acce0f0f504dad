// Device code. A thread's sums of a cast.
#pragma once

#include "core/kernels/cuda/approximations.cuh"
#include "core/kernels/cuda/conversions.cuh"
#include "core/ops/statistics_layout.h"

namespace telens::cuda {

// A thread's sums for a cast.
struct CastAccumulator {
  double squared_error;
  std::uint32_t underflows;
  std::uint32_t overflows;
  std::uint32_t saturated;

  // The caller sets elements and scales.
  TELENS_DEVICE CastSums finish() const {
    CastSums sums;
    sums.underflows = underflows;
    sums.overflows = overflows;
    sums.saturated = saturated;
    sums.squared_error = squared_error;
    return sums;
  }
};

// In a sum of squared errors above this value, losses from underflow are negligible.
inline constexpr float kNoticeableError = 0x1p-110F;

TELENS_DEVICE float get_magnitude(float value) {
  return bits_as<float>(bits_as<std::uint32_t>(value) & FP32::kMagnitudeMask);
}

// Returns the sum of the squares of a few errors: computed in FP32, or in double if FP32 cannot
// hold it.
template <int size>
TELENS_DEVICE double sum_of_squares(const float (&errors)[size]) {
  float squares = 0;
  TELENS_UNROLL
  for (const float error : errors) squares = multiply_add(error, error, squares);
  if (squares >= kNoticeableError && squares <= FP32::kMax) return squares;
  double exact = 0;
  TELENS_UNROLL
  for (const float error : errors) exact += static_cast<double>(error) * error;
  return exact;
}

// The smallest and the largest scale; both become NaN if one scale is NaN.
struct ScaleExtremes {
  float smallest = std::numeric_limits<float>::infinity();
  float largest = -std::numeric_limits<float>::infinity();

  TELENS_DEVICE void add(float scale) {
    smallest = scale < smallest || scale != scale ? scale : smallest;
    largest = scale > largest || scale != scale ? scale : largest;
  }
  TELENS_DEVICE void finish(CastSums& sums) const {
    sums.scale_inv_min = smallest;
    sums.scale_inv_max = largest;
  }
};

}  // namespace telens::cuda
