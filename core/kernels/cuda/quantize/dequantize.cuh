// Device code. FP8 codes -> BF16, FP16 or FP32.
#pragma once

#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/packs.cuh"

namespace telens::cuda {

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
