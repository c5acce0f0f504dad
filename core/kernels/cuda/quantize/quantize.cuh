// Device code. FP8 with one scale.
#pragma once

#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/packs.cuh"
#include "core/kernels/cuda/words.cuh"

namespace telens::cuda {

// ---- x -> FP8 codes and the running amax, in one read of x.

struct QuantizeArguments {
  const void* x;
  std::int64_t size;
  const float* scale;
  float* amax;  // becomes max(amax, max |x|); nullptr if not requested
  std::uint8_t* codes;
};

inline constexpr int kQuantizeUnroll = 4;

// The scale's magnitude, and its sign in bit 7, the sign bit of a code.
struct Scale {
  float magnitude;
  std::uint32_t sign;

  static TELENS_DEVICE Scale from(float scale) {
    const auto bits = bits_as<std::uint32_t>(scale);
    return {bits_as<float>(bits & FP32::kMagnitudeMask), (bits & FP32::kSignMask) >> 24};
  }
};

// FP8 codes in words.
template <int size>
using Fp8Words = Words<std::uint8_t, size>;

namespace detail {

// Returns the signs of elements i to i + 3, each in bit 7 of its byte. All other bits are zero.
template <typename Input, int size>
TELENS_DEVICE std::uint32_t signs_of_four(const Words<typename Input::Bits, size>& x, int i) {
  constexpr std::uint32_t kSigns = 0x80808080U;
  const std::uint32_t* words = x.words + i / kLanes<Input>;
  if constexpr (kLanes<Input> == 2) {
    return permute_bytes(words[0], words[1], 0x7531) & kSigns;
  } else {
    return permute_bytes(permute_bytes(words[0], words[1], 0x0073),
                         permute_bytes(words[2], words[3], 0x0073), 0x5410) &
           kSigns;
  }
}

}  // namespace detail

// Returns the codes of x[i] * get_scale(i), saturating. Scales are nonnegative or NaN. `sign` is
// XORed with every element's sign.
template <typename Input, typename Output, int size, typename ScaleOf>
TELENS_DEVICE Fp8Words<size> encode_words(const Words<typename Input::Bits, size>& x,
                                          std::uint32_t sign, const ScaleOf& get_scale) {
  const auto magnitudes = count_magnitudes<Input>(x);
  const auto scaled = [&](int i) { return widen_at<Input>(magnitudes, i) * get_scale(i); };
  Fp8Words<size> codes;
  if constexpr (size == 1) {
    const std::uint32_t sign_of_code =
        (x.words[0] & Input::kSignMask) >> (Input::kWidth - 8) ^ sign;
    codes.words[0] = encode_magnitudes<Output>(scaled(0), 0.0F) | sign_of_code;
  } else {
    TELENS_UNROLL
    for (int i = 0; i < size; i += 4) {
      const std::uint32_t low = encode_magnitudes<Output>(scaled(i), scaled(i + 1));
      const std::uint32_t high = encode_magnitudes<Output>(scaled(i + 2), scaled(i + 3));
      codes.words[i / 4] = permute_bytes(low, high, 0x5410) |
                           (detail::signs_of_four<Input>(x, i) ^ sign * 0x01010101U);
    }
  }
  return codes;
}

// Updates the largest magnitude of every lane; NaNs are larger than all numbers.
template <typename Input, int size>
TELENS_DEVICE std::uint32_t larger_lanes(std::uint32_t largest,
                                         const Words<typename Input::Bits, size>& x) {
  TELENS_UNROLL
  for (const std::uint32_t word : count_magnitudes<Input>(x).words) {
    largest = LaneMath<Input>::max_unsigned(largest, word);
  }
  return largest;
}

// Returns the codes of a pack with one scale, and updates `largest`, the largest magnitude in every
// lane.
template <typename Input, typename Output, int size>
TELENS_DEVICE Fp8Words<size> quantize_words(const Words<typename Input::Bits, size>& x,
                                            const Scale& scale, std::uint32_t& largest) {
  largest = larger_lanes<Input>(largest, x);
  return encode_words<Input, Output>(x, scale.sign, [&](int) { return scale.magnitude; });
}

// Like the function above, with a format known at run time.
template <typename Input, int size>
TELENS_DEVICE Fp8Words<size> quantize_words(FormatId output,
                                            const Words<typename Input::Bits, size>& x,
                                            const Scale& scale, std::uint32_t& largest) {
  return output == FormatId::e4m3 ? quantize_words<Input, E4M3>(x, scale, largest)
                                  : quantize_words<Input, E5M2>(x, scale, largest);
}

template <typename Input, typename Output, int width, typename Thread>
TELENS_DEVICE void quantize(const QuantizeArguments& arguments, const Thread& thread,
                            BlockMaximum& shared) {
  using Bits = typename Input::Bits;
  const Scale scale = Scale::from(*arguments.scale);
  std::uint32_t largest = 0;
  for_each_pack<width, kQuantizeUnroll, AsWords>(
      thread, static_cast<const Bits*>(arguments.x), arguments.size,
      [&]<int size>(const Words<Bits, size>& x, std::int64_t offset) {
        store_words(arguments.codes + offset, quantize_words<Input, Output>(x, scale, largest));
      });
  if (arguments.amax != nullptr) {
    update_amax<Input>(thread, largest_lane<Input>(largest), arguments.amax, shared);
  }
}

// ---- FP8 codes -> BF16, FP16 or FP32.

struct DequantizeArguments {
  const std::uint8_t* codes;
  std::int64_t size;
  const float* scale_inv;  // nullptr: 1
  void* values;
};

inline constexpr int kDequantizeUnroll = 4;

// Returns magnitude * scale, rounded to FP32 and then to Output; neither is negative. Bit 7 of
// `sign` is the sign, also of a NaN.
template <typename Output>
TELENS_DEVICE typename Output::Bits scaled_value(float magnitude, float scale, std::uint32_t sign) {
  using Bits = typename Output::Bits;
  constexpr int kFromCode = Output::kWidth - 8;
  const Bits bits = narrow<Output>(magnitude * scale) & Output::kMagnitudeMask;
  return static_cast<Bits>(bits | (sign & 0x80U) << kFromCode);
}

// value = code * scale_inv, rounded to FP32 and then to Output. The sign is the XOR of the signs of
// code and scale, also for NaN.
template <typename Input, typename Output, int width, typename Thread>
TELENS_DEVICE void dequantize(const DequantizeArguments& arguments, const Thread& thread) {
  using Bits = typename Output::Bits;
  const auto scale = bits_as<std::uint32_t>(arguments.scale_inv ? *arguments.scale_inv : 1.0F);
  const float magnitude_of_scale = bits_as<float>(scale & FP32::kMagnitudeMask);
  const std::uint32_t sign_of_scale = (scale & FP32::kSignMask) >> 24;
  const auto value = [&](float magnitude, std::uint32_t code) {
    return scaled_value<Output>(magnitude, magnitude_of_scale, code ^ sign_of_scale);
  };
  for_each_pack<width, kDequantizeUnroll>(
      thread, arguments.codes, arguments.size,
      [&]<int size>(const Pack<std::uint8_t, size>& pack, std::int64_t offset) {
        Pack<Bits, size> values;
        if constexpr (size == 1) {
          const std::uint32_t code = pack.values[0];
          values.values[0] = value(decode_pair<Input>(code & 0x7fU).first, code);
        } else {
          TELENS_UNROLL
          for (int i = 0; i < size; i += 2) {
            const std::uint32_t first = pack.values[i];
            const std::uint32_t second = pack.values[i + 1];
            const FloatPair pair =
                decode_pair<Input>(static_cast<std::uint16_t>((first | second << 8) & 0x7f7fU));
            values.values[i] = value(pair.first, first);
            values.values[i + 1] = value(pair.second, second);
          }
        }
        store_pack(static_cast<Bits*>(arguments.values) + offset, values);
      });
}

}  // namespace telens::cuda
