// Device code. Extremes and counts from the bits of elements, without arithmetic on their values. A
// word has two 16-bit elements.
//
// Read as unsigned integers, floating-point codes increase with the magnitude, and all negative
// numbers are above the others. Read as signed integers, negative numbers are below the others and
// increase with the magnitude. So four integer extremes give both extreme values and the largest
// magnitude.
#pragma once

#include "core/kernels/cuda/lanes.cuh"

namespace telens::cuda {

// Extremes of the codes added so far, none of which is NaN. Initially neutral.
template <typename Format>
class CodeExtremes {
 public:
  using Bits = typename Format::Bits;

  TELENS_DEVICE void add(std::uint32_t word) {
    using Math = LaneMath<Format>;
    largest_unsigned_ = Math::max_unsigned(largest_unsigned_, word);
    smallest_unsigned_ = Math::min_unsigned(smallest_unsigned_, word);
    largest_signed_ = Math::max_signed(largest_signed_, word);
    smallest_signed_ = Math::min_signed(smallest_signed_, word);
    // Magnitude - 1 with the sign bit set, so that no lane borrows from the next. As a signed
    // integer it increases with the magnitude. For zero the borrow clears the sign bit, which makes
    // it the largest.
    const std::uint32_t less_one =
        (word | in_every_lane<Format>(Format::kSignMask)) - in_every_lane<Format>(1);
    smallest_less_one_ = Math::min_signed(smallest_less_one_, less_one);
  }

  TELENS_DEVICE void merge(const CodeExtremes& other) {
    using Math = LaneMath<Format>;
    largest_unsigned_ = Math::max_unsigned(largest_unsigned_, other.largest_unsigned_);
    smallest_unsigned_ = Math::min_unsigned(smallest_unsigned_, other.smallest_unsigned_);
    largest_signed_ = Math::max_signed(largest_signed_, other.largest_signed_);
    smallest_signed_ = Math::min_signed(smallest_signed_, other.smallest_signed_);
    smallest_less_one_ = Math::min_signed(smallest_less_one_, other.smallest_less_one_);
  }

  // The following functions require at least one code.

  // The largest magnitude; a NaN is larger than all numbers.
  TELENS_DEVICE std::uint32_t amax() const {
    const std::uint32_t negative = unsigned_max();
    const std::uint32_t other = signed_max();
    const std::uint32_t of_negative = negative & sign() ? negative & magnitude_mask() : 0;
    const std::uint32_t of_other = other & sign() ? 0 : other;
    return of_negative > of_other ? of_negative : of_other;
  }
  // The code of the largest value: the largest nonnegative one, or the negative one with the
  // smallest magnitude if there is none.
  TELENS_DEVICE Bits max() const {
    const std::uint32_t candidate = signed_max();
    return static_cast<Bits>(candidate & sign() ? unsigned_min() : candidate);
  }
  TELENS_DEVICE Bits min() const {
    const std::uint32_t candidate = unsigned_max();
    return static_cast<Bits>(candidate & sign() ? candidate : unsigned_min());
  }
  TELENS_DEVICE bool has_zero() const { return unsigned_min() == 0 || signed_min() == sign(); }
  // The smallest nonzero magnitude; above all magnitudes if all are zero.
  TELENS_DEVICE std::uint32_t smallest_nonzero() const {
    const std::uint32_t less_one = fold(smallest_less_one_, [](std::uint32_t a, std::uint32_t b) {
      return LaneMath<Format>::min_signed(a, b);
    });
    const std::uint32_t magnitude = (less_one - sign() + 1) & all_ones();
    return magnitude == 0 ? all_ones() : magnitude;
  }

 private:
  static TELENS_DEVICE constexpr std::uint32_t sign() { return Format::kSignMask; }
  static TELENS_DEVICE constexpr std::uint32_t magnitude_mask() { return Format::kMagnitudeMask; }
  static TELENS_DEVICE constexpr std::uint32_t all_ones() { return sign() | magnitude_mask(); }

  // Combines both lanes into the lower one.
  template <typename Combine>
  static TELENS_DEVICE std::uint32_t fold(std::uint32_t word, Combine combine) {
    if constexpr (kLanes<Format> == 1) return word;
    return combine(word, word >> 16 | word << 16) & 0xffffU;
  }
  TELENS_DEVICE std::uint32_t unsigned_max() const {
    return fold(largest_unsigned_, [](std::uint32_t a, std::uint32_t b) {
      return LaneMath<Format>::max_unsigned(a, b);
    });
  }
  TELENS_DEVICE std::uint32_t unsigned_min() const {
    return fold(smallest_unsigned_, [](std::uint32_t a, std::uint32_t b) {
      return LaneMath<Format>::min_unsigned(a, b);
    });
  }
  TELENS_DEVICE std::uint32_t signed_max() const {
    return fold(largest_signed_, [](std::uint32_t a, std::uint32_t b) {
      return LaneMath<Format>::max_signed(a, b);
    });
  }
  TELENS_DEVICE std::uint32_t signed_min() const {
    return fold(smallest_signed_, [](std::uint32_t a, std::uint32_t b) {
      return LaneMath<Format>::min_signed(a, b);
    });
  }

  std::uint32_t largest_unsigned_ = 0;
  std::uint32_t smallest_unsigned_ = in_every_lane<Format>(all_ones());
  std::uint32_t largest_signed_ = in_every_lane<Format>(sign());
  std::uint32_t smallest_signed_ = in_every_lane<Format>(magnitude_mask());
  std::uint32_t smallest_less_one_ = in_every_lane<Format>(magnitude_mask());
};

// Counts the lanes of a word with a magnitude below `limit`, which is at most infinity + 1.
template <typename Format>
TELENS_DEVICE int count_below(std::uint32_t word, std::uint32_t limit) {
  if constexpr (kLanes<Format> == 1) {
    return (word & Format::kMagnitudeMask) < limit ? 1 : 0;
  } else {
    // The sign bit, set before the subtraction, remains set if the magnitude is not below the
    // limit.
    const std::uint32_t signs = in_every_lane<Format>(Format::kSignMask);
    const std::uint32_t above = ((word | signs) - in_every_lane<Format>(limit)) & signs;
#if defined(__CUDA_ARCH__)
    return 2 - __popc(above);
#else
    return 2 - static_cast<int>((above >> 15 & 1) + (above >> 31));
#endif
  }
}

}  // namespace telens::cuda
