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

// The code of one element; `largest` takes its magnitude.
template <typename Input, typename Output, int size>
TELENS_DEVICE Pack<std::uint8_t, size> quantize_pack(const Pack<typename Input::Bits, size>& x,
                                                     const Scale& scale, std::uint32_t& largest) {
  using Bits = typename Input::Bits;
  const auto code_pair = [&](Bits first, Bits second) {
    const Bits first_magnitude = first & Input::kMagnitudeMask;
    const Bits second_magnitude = second & Input::kMagnitudeMask;
    const Bits larger = first_magnitude > second_magnitude ? first_magnitude : second_magnitude;
    largest = larger > largest ? larger : largest;
    const std::uint32_t magnitudes =
        encode_magnitudes<Output>(widen<Input>(first_magnitude) * scale.magnitude,
                                  widen<Input>(second_magnitude) * scale.magnitude);
    constexpr int kToCode = Input::kWidth - 8;
    const std::uint32_t signs = ((first & Input::kSignMask) >> kToCode ^ scale.sign) |
                                ((second & Input::kSignMask) >> kToCode ^ scale.sign) << 8;
    return magnitudes | signs;
  };
  Pack<std::uint8_t, size> codes;
  if constexpr (size == 1) {
    codes.values[0] = static_cast<std::uint8_t>(code_pair(x.values[0], 0));
  } else {
    TELENS_UNROLL
    for (int i = 0; i < size; i += 2) {
      const std::uint32_t pair = code_pair(x.values[i], x.values[i + 1]);
      codes.values[i] = static_cast<std::uint8_t>(pair);
      codes.values[i + 1] = static_cast<std::uint8_t>(pair >> 8);
    }
  }
  return codes;
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
