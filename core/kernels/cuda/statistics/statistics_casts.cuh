// Device code. The per-element parts of a tensor's statistics: extremes and counts of its codes,
// and the effects of casting to FP8.
#pragma once

#include "core/kernels/cuda/statistics/sums.cuh"
#include "core/kernels/cuda/words.cuh"

namespace telens::cuda {

// ---- Extremes and counts from the bits of elements, without arithmetic on their values. A word
// has two 16-bit elements.
//
// Read as unsigned integers, floating-point codes increase with the magnitude, and all negative
// numbers are above the others. Read as signed integers, negative numbers are below the others and
// increase with the magnitude. So four integer extremes give both extreme values and the largest
// magnitude.

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

// ---- The effects of casting to FP8: the thresholds at which the counters of a cast begin,
// searched by a warp, and the error of an element.

struct StatisticsCast {
  FormatId format;     // e4m3 or e5m2
  const float* scale;  // multiplies x before encoding
};

// Magnitudes of the tensor's format, like CastPlan in
// core/kernels/cpu/statistics/statistics_ranges.h.
struct CastThresholds {
  FormatId format;
  float scale;  // its magnitude
  float scale_inv;
  float signed_scale_inv;
  std::uint32_t first_nonzero;   // smaller ones become zero
  std::uint32_t first_overflow;  // this and larger numbers are beyond the format's range
  std::uint32_t first_clipped;   // this and larger numbers are clipped
};

// Returns the smallest magnitude of Input from 1 to infinity for which the predicate holds, or
// infinity + 1 if there is none. The predicate must be monotonic: true from some magnitude on. All
// lanes of a warp must call it together; it tests 32 positions at a time.
template <typename Input, typename Thread, typename Predicate>
TELENS_DEVICE std::uint32_t first_magnitude(const Thread& thread, const Predicate& holds) {
  const auto lane = static_cast<std::uint32_t>(thread.index() % kWarp);
  std::uint32_t first = 1;
  std::uint32_t last = Input::kTopExponentCode + 1U;
  while (first < last) {
    const std::uint32_t step = (last - first + kWarp - 1) / kWarp;
    const std::uint32_t place = first + lane * step;
    const bool below =
        place < last && !holds(widen<Input>(static_cast<typename Input::Bits>(place)));
    const std::uint32_t votes = thread.ballot(below);
    if (votes == 0) return first;
    // The lanes below the threshold are the first ones: all bits are set up to the highest vote.
    std::uint32_t count = 0;
    while (count < kWarp && (votes >> count & 1U) != 0) ++count;
    const std::uint32_t beyond = first + count * step;
    first += (count - 1) * step + 1;
    last = beyond < last ? beyond : last;
  }
  return first;
}

// Finds the thresholds for all casts; each warp processes one at a time. The block must synchronize
// before reading them.
template <typename Input, typename Thread>
TELENS_DEVICE void find_thresholds(const StatisticsCast* casts, int count, const Thread& thread,
                                   CastThresholds* thresholds) {
  constexpr int kKinds = 3;
  for (int job = thread.index() / kWarp; job < count * kKinds; job += kThreads / kWarp) {
    const StatisticsCast& cast = casts[job / kKinds];
    const float signed_inverse = 1.0F / *cast.scale;
    const float factor = get_magnitude(*cast.scale);
    const float inverse = get_magnitude(signed_inverse);
    const auto find = [&]<typename Output>(std::uint32_t& result, int kind) {
      result = first_magnitude<Input>(thread, [&](float x) {
        if (kind == 0) return encode<Output>(x * factor, Saturation::saturating) != 0;
        if (kind == 1) return x > Output::kMax * inverse;
        return encode<Output>(x * factor, Saturation::non_saturating) > Output::kMaxCode;
      });
    };
    std::uint32_t found = 0;
    if (cast.format == FormatId::e4m3) {
      find.template operator()<E4M3>(found, job % kKinds);
    } else {
      find.template operator()<E5M2>(found, job % kKinds);
    }
    if (thread.index() % kWarp != 0) continue;
    CastThresholds& plan = thresholds[job / kKinds];
    if (job % kKinds == 0) {
      plan.format = cast.format;
      plan.scale = factor;
      plan.scale_inv = inverse;
      plan.signed_scale_inv = signed_inverse;
      plan.first_nonzero = found;
    } else if (job % kKinds == 1) {
      plan.first_overflow = found;
    } else {
      plan.first_clipped = found;
    }
  }
}

// The constants of rounding to a format.
struct RoundingGrid {
  float largest;
  std::uint32_t least_field;  // FP32 exponent of the format's smallest normal number
  std::uint32_t extra_field;  // FP32's additional mantissa bits, as a difference of exponents
};

template <typename Format>
TELENS_DEVICE constexpr RoundingGrid make_grid() {
  return {Format::kMax, bits_as<std::uint32_t>(Format::kSmallestNormal),
          static_cast<std::uint32_t>(FP32::kMantissaBits - Format::kMantissaBits)
              << FP32::kMantissaBits};
}

// Rounds a magnitude within the format's range to the nearest value of the format; a NaN stays a
// NaN. Adding x to a power of two whose unit in the last place is the format's unit at x's exponent
// rounds x to that unit. Subtracting the power of two again leaves exactly the rounded number.
TELENS_DEVICE float round_to_grid(float magnitude, const RoundingGrid& grid) {
  std::uint32_t field = bits_as<std::uint32_t>(magnitude) & FP32::kTopExponentCode;
  field = field > grid.least_field ? field : grid.least_field;
  const auto magic = bits_as<float>(field + grid.extra_field);
  return (magnitude + magic) - magic;
}

// decode(encode(x)) of a magnitude that is not NaN, saturating.
template <typename Format>
TELENS_DEVICE float round_magnitude(float magnitude) {
  return round_to_grid(magnitude < Format::kMax ? magnitude : Format::kMax, make_grid<Format>());
}

// Returns FP32(code * scale_inv) - x of a finite element, rounded to FP32. The sign is unspecified.
template <typename Format>
TELENS_DEVICE float cast_error(float x, const CastThresholds& cast) {
  const float magnitude = get_magnitude(x);
  return round_magnitude<Format>(magnitude * cast.scale) * cast.scale_inv - magnitude;
}

// Returns the error of any element, computed by the reference conversions in double.
template <typename Format>
TELENS_DEVICE double exact_cast_error(float x, const CastThresholds& cast) {
  const float magnitude = get_magnitude(x);
  const float decoded =
      decode<Format>(encode<Format>(magnitude * cast.scale, Saturation::saturating)) *
      cast.scale_inv;
  return static_cast<double>(decoded) - static_cast<double>(magnitude);
}

}  // namespace telens::cuda
