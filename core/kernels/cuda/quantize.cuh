// x -> FP8 codes under one scale, and the running amax, in one read of x: device code.
#pragma once

#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/packs.cuh"

namespace telens::cuda {

struct QuantizeArguments {
  const void* x;
  std::int64_t size;
  const float* scale;
  float* amax;  // becomes max(amax, max |x|); nullptr: not wanted
  std::uint8_t* codes;
};

inline constexpr int kQuantizeUnroll = 4;

// The scale's magnitude and its sign at bit 7, where a code has it.
struct Scale {
  float magnitude;
  std::uint32_t sign;

  static TELENS_DEVICE Scale from(float scale) {
    const auto bits = bits_as<std::uint32_t>(scale);
    return {bits_as<float>(bits & FP32::kMagnitudeMask), (bits & FP32::kSignMask) >> 24};
  }
};

// The codes of x[i] * scale_of(i), saturating. Scales are not negative or NaN; `sign` is
// exclusive-or of every element's.
template <typename Input, typename Output, int size, typename ScaleOf>
TELENS_DEVICE Pack<std::uint8_t, size> encode_pack(const Pack<typename Input::Bits, size>& x,
                                                   std::uint32_t sign, const ScaleOf& scale_of) {
  using Bits = typename Input::Bits;
  const auto scaled = [&](int i) {
    const Bits magnitude = x.values[i] & Input::kMagnitudeMask;
    return widen<Input>(magnitude) * scale_of(i);
  };
  const auto sign_of = [&](int i) {
    return (x.values[i] & Input::kSignMask) >> (Input::kWidth - 8) ^ sign;
  };
  Pack<std::uint8_t, size> codes;
  if constexpr (size == 1) {
    const std::uint32_t code = encode_magnitudes<Output>(scaled(0), 0.0F) | sign_of(0);
    codes.values[0] = static_cast<std::uint8_t>(code);
  } else {
    TELENS_UNROLL
    for (int i = 0; i < size; i += 2) {
      const std::uint32_t pair =
          encode_magnitudes<Output>(scaled(i), scaled(i + 1)) | sign_of(i) | sign_of(i + 1) << 8;
      codes.values[i] = static_cast<std::uint8_t>(pair);
      codes.values[i + 1] = static_cast<std::uint8_t>(pair >> 8);
    }
  }
  return codes;
}

// The codes of a pack under one scale; `largest` takes the magnitudes.
template <typename Input, typename Output, int size>
TELENS_DEVICE Pack<std::uint8_t, size> quantize_pack(const Pack<typename Input::Bits, size>& x,
                                                     const Scale& scale, std::uint32_t& largest) {
  TELENS_UNROLL
  for (int i = 0; i < size; ++i) {
    const std::uint32_t magnitude = x.values[i] & Input::kMagnitudeMask;
    largest = magnitude > largest ? magnitude : largest;
  }
  return encode_pack<Input, Output>(x, scale.sign, [&](int) { return scale.magnitude; });
}

template <typename Input, typename Output, int width, typename Thread>
TELENS_DEVICE void quantize(const QuantizeArguments& arguments, const Thread& thread,
                            BlockMaximum& shared) {
  using Bits = typename Input::Bits;
  const Scale scale = Scale::from(*arguments.scale);
  std::uint32_t largest = 0;
  for_each_pack<width, kQuantizeUnroll>(
      thread, static_cast<const Bits*>(arguments.x), arguments.size,
      [&]<int size>(const Pack<Bits, size>& pack, std::int64_t offset) {
        store_pack(arguments.codes + offset, quantize_pack<Input, Output>(pack, scale, largest));
      });
  if (arguments.amax != nullptr) update_amax<Input>(thread, largest, arguments.amax, shared);
}

}  // namespace telens::cuda
