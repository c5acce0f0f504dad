// Largest magnitudes, NaNs among them or left out: device code.
#pragma once

#include "core/kernels/cuda/lanes.cuh"
#include "core/kernels/cuda/packs.cuh"
#include "core/ops/block_scale_formula.h"

namespace telens::cuda {

// Magnitudes as integers that grow with them. NaNs, whose codes lie above infinity's, stay there or
// wrap around to below zero.
template <typename Input, NanInMaximum nan>
struct Magnitudes {
  static constexpr std::uint32_t kMask = Input::kMagnitudeMask;
  static constexpr std::uint32_t kZero =
      nan == NanInMaximum::left_out ? kMask - Input::kTopExponentCode : 0;

  // Of every lane of a word.
  static TELENS_DEVICE std::uint32_t of_word(std::uint32_t word) {
    constexpr std::uint32_t kMasks = in_every_lane<Input>(kMask);
    return ((word & kMasks) + in_every_lane<Input>(kZero)) & kMasks;
  }
  static TELENS_DEVICE std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    return LaneMath<Input>::max_unsigned(a, b);
  }
  static TELENS_DEVICE std::uint32_t largest_lane(std::uint32_t word) {
    if constexpr (kLanes<Input> == 1) return word;
    return larger(word, word >> 16) & 0xffffU;
  }

  // Of a pack of whole words.
  template <int size>
  using Words = Pack<std::uint32_t, size / kLanes<Input>>;

  template <int size>
  static TELENS_DEVICE Words<size> of(const Pack<typename Input::Bits, size>& x) {
    auto words = bits_as<Words<size>>(x);
    TELENS_UNROLL
    for (std::uint32_t& word : words.values) word = of_word(word);
    return words;
  }
  template <int size>
  static TELENS_DEVICE std::uint32_t largest(const Pack<std::uint32_t, size>& words) {
    std::uint32_t word = words.values[0];
    TELENS_UNROLL
    for (int i = 1; i < size; ++i) word = larger(word, words.values[i]);
    return largest_lane(word);
  }

  // The magnitude as a code of Input; 0 where nothing was a number.
  static TELENS_DEVICE std::uint32_t code(std::uint32_t largest) {
    return largest > kZero ? largest - kZero : 0;
  }
  static TELENS_DEVICE float value(std::uint32_t largest) {
    return widen<Input>(static_cast<typename Input::Bits>(code(largest)));
  }
};

}  // namespace telens::cuda
