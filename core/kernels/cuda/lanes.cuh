// Device code. Codes of a high-precision format in the lanes of 32-bit words, and their maxima and
// minima.
#pragma once

#include "core/kernels/cuda/conversions.cuh"

namespace telens::cuda {

// Elements in a 32-bit word.
template <typename Format>
inline constexpr int kLanes = 32 / Format::kWidth;

// Returns a word with the code in every lane.
template <typename Format>
TELENS_DEVICE constexpr std::uint32_t in_every_lane(std::uint32_t code) {
  return kLanes<Format> == 1 ? code : code | code << 16;
}

// Returns the FP32 value of the code in one lane of a word.
template <typename Format>
TELENS_DEVICE float widen_lane(std::uint32_t word, int lane) {
  if constexpr (Format::kId == FormatId::bf16) {
    return bits_as<float>(lane == 0 ? word << 16 : word & 0xffff0000U);
  } else if constexpr (kLanes<Format> == 1) {
    return bits_as<float>(word);
  } else {
    return widen<Format>(static_cast<typename Format::Bits>(lane == 0 ? word : word >> 16));
  }
}

template <typename Format>
struct LaneMath {
  static TELENS_DEVICE std::uint32_t max_unsigned(std::uint32_t a, std::uint32_t b) {
    if constexpr (kLanes<Format> == 2) return max_u16x2(a, b);
    return a > b ? a : b;
  }
  static TELENS_DEVICE std::uint32_t min_unsigned(std::uint32_t a, std::uint32_t b) {
    if constexpr (kLanes<Format> == 2) return min_u16x2(a, b);
    return a < b ? a : b;
  }
  static TELENS_DEVICE std::uint32_t max_signed(std::uint32_t a, std::uint32_t b) {
    if constexpr (kLanes<Format> == 2) return max_s16x2(a, b);
    return static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b) ? a : b;
  }
  static TELENS_DEVICE std::uint32_t min_signed(std::uint32_t a, std::uint32_t b) {
    if constexpr (kLanes<Format> == 2) return min_s16x2(a, b);
    return static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b) ? a : b;
  }
};

// Returns the largest lane of a word.
template <typename Format>
TELENS_DEVICE std::uint32_t largest_lane(std::uint32_t word) {
  if constexpr (kLanes<Format> == 1) return word;
  return LaneMath<Format>::max_unsigned(word, word >> 16) & 0xffffU;
}

}  // namespace telens::cuda
