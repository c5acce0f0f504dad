// Device code. Largest magnitudes, with NaNs either largest or ignored, and max |x| of a tensor.
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

struct AmaxArguments {
  const void* x;
  std::int64_t size;
  float* amax;  // becomes max(amax, max |x|); not negative
};

inline constexpr int kAmaxUnroll = 4;

// NaN elements are either larger than all numbers or ignored. If ignored, the amax of a tensor of
// only NaNs is 0.
template <typename Format, int width, NanInMaximum nan = NanInMaximum::wins, typename Thread>
TELENS_DEVICE void amax(const AmaxArguments& arguments, const Thread& thread,
                        BlockMaximum& shared) {
  using Bits = typename Format::Bits;
  using Maxima = Magnitudes<Format, nan>;
  std::uint32_t largest = 0;  // in every lane
  for_each_pack<width, kAmaxUnroll, AsWords>(thread, static_cast<const Bits*>(arguments.x),
                                             arguments.size, [&](const auto& x, std::int64_t) {
                                               TELENS_UNROLL
                                               for (const std::uint32_t word : x.words) {
                                                 largest =
                                                     Maxima::larger(largest, Maxima::of_word(word));
                                               }
                                             });
  update_amax<Format>(thread, Maxima::code(largest_lane<Format>(largest)), arguments.amax, shared);
}

}  // namespace telens::cuda
