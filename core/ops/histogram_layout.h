// The bins of histograms of a tensor's values. Host and device; no LibTorch.
//
// A code histogram has one bin for each code of a 16-bit format; the bin's number is the code.
//
// An exponent histogram has the same bins for BF16, FP16 and FP32, in the order of their values,
// mirrored about zero:
//   0      NaN, of either sign
//   1      -Inf
//   2      (-2^128, -2^127]     normal numbers with the same exponent: only the exponent field
//   ...                         decides, so that counting needs no arithmetic
//   255    (-2^-125, -2^-126]
//   256    negative subnormals, of the tensor's own format: FP16's are larger than BF16's
//   257    zeros, of either sign
//   258    positive subnormals
//   259    [2^-126, 2^-125)
//   ...
//   512    [2^127, 2^128)
//   513    +Inf
#pragma once

#include <cstdint>

#include "core/formats/formats.h"
#include "core/formats/host_device.h"

namespace telens {

inline constexpr std::int64_t kCodeBins = 1 << 16;

inline constexpr std::int64_t kNanBin = 0;
inline constexpr std::int64_t kNegativeInfinityBin = 1;
inline constexpr std::int64_t kZeroBin = 257;
inline constexpr std::int64_t kPositiveInfinityBin = 513;
inline constexpr std::int64_t kExponentBins = 514;

// Distances from kZeroBin: upwards for positive, downwards for negative values.
inline constexpr std::int64_t kSubnormalDistance = 1;
TELENS_HOST_DEVICE constexpr std::int64_t distance_of_exponent(int exponent) {
  return exponent - FP32::kMinExponent + 2;
}

TELENS_HOST_DEVICE constexpr std::int64_t signed_bin(bool negative, std::int64_t distance) {
  return negative ? kZeroBin - distance : kZeroBin + distance;
}

static_assert(signed_bin(false, distance_of_exponent(FP32::kMaxExponent)) + 1 ==
              kPositiveInfinityBin);
static_assert(signed_bin(true, distance_of_exponent(FP32::kMaxExponent)) - 1 ==
              kNegativeInfinityBin);

// The bin of all codes with that exponent field. For the two fields that hold different kinds of
// values, it is the bin of the subnormals or of the infinity.
template <SignedFormat Format>
TELENS_HOST_DEVICE constexpr std::int64_t bin_of_field(bool negative, int field) {
  constexpr int kTopField = Format::kTopExponentCode >> Format::kMantissaBits;
  if (field == 0) return signed_bin(negative, kSubnormalDistance);
  if (field == kTopField) return negative ? kNegativeInfinityBin : kPositiveInfinityBin;
  return signed_bin(negative, distance_of_exponent(field - Format::kBias));
}

// The bin of a single code.
template <SignedFormat Format>
TELENS_HOST_DEVICE constexpr std::int64_t get_exponent_bin(typename Format::Bits code) {
  const auto magnitude = static_cast<typename Format::Bits>(code & Format::kMagnitudeMask);
  if (magnitude > Format::kTopExponentCode) return kNanBin;
  if (magnitude == 0) return kZeroBin;
  return bin_of_field<Format>((code & Format::kSignMask) != 0, magnitude >> Format::kMantissaBits);
}

}  // namespace telens
