// Device code. Largest magnitudes, with NaNs either largest or ignored.
#pragma once

#include "core/kernels/cuda/words.cuh"
#include "core/ops/scale_formula.h"

namespace telens::cuda {

// Magnitudes as integers with the same order. NaNs, whose codes are above infinity's, either stay
// there or wrap around to negative numbers.
template <typename Input, NanInMaximum nan>
struct Magnitudes {
  static constexpr std::uint32_t kMask = Input::kMagnitudeMask;
  static constexpr std::uint32_t kZero =
      nan == NanInMaximum::left_out ? kMask - Input::kTopExponentCode : 0;

  // Returns the magnitudes of every lane of a word.
  static TELENS_DEVICE std::uint32_t of_word(std::uint32_t word) {
    constexpr std::uint32_t kMasks = in_every_lane<Input>(kMask);
    return ((word & kMasks) + in_every_lane<Input>(kZero)) & kMasks;
  }
  static TELENS_DEVICE std::uint32_t larger(std::uint32_t a, std::uint32_t b) {
    return LaneMath<Input>::max_unsigned(a, b);
  }

  // The maximum of a pack of whole words.
  template <int size>
  using MaximaOf = Pack<std::uint32_t, size / kLanes<Input>>;

  template <int size>
  static TELENS_DEVICE MaximaOf<size> of(const Words<typename Input::Bits, size>& x) {
    MaximaOf<size> maxima;
    TELENS_UNROLL
    for (int i = 0; i < x.kWords; ++i) maxima.values[i] = of_word(x.words[i]);
    return maxima;
  }
  template <int size>
  static TELENS_DEVICE std::uint32_t largest(const Pack<std::uint32_t, size>& words) {
    std::uint32_t word = words.values[0];
    TELENS_UNROLL
    for (int i = 1; i < size; ++i) word = larger(word, words.values[i]);
    return largest_lane<Input>(word);
  }

  // Returns the magnitude as a code of Input; 0 if no number was found.
  static TELENS_DEVICE std::uint32_t code(std::uint32_t largest) {
    return largest > kZero ? largest - kZero : 0;
  }
  static TELENS_DEVICE float value(std::uint32_t largest) {
    return widen<Input>(static_cast<typename Input::Bits>(code(largest)));
  }
};

}  // namespace telens::cuda
