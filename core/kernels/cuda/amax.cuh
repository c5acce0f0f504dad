// max |x|: device code.
#pragma once

#include "core/kernels/cuda/conversions.cuh"
#include "core/kernels/cuda/packs.cuh"

namespace telens::cuda {

struct AmaxArguments {
  const void* x;
  std::int64_t size;
  float* amax;  // becomes max(amax, max |x|); not negative
};

inline constexpr int kAmaxUnroll = 4;

template <typename Format, int width, typename Thread>
TELENS_DEVICE void amax(const AmaxArguments& arguments, const Thread& thread,
                        BlockMaximum& shared) {
  using Bits = typename Format::Bits;
  std::uint32_t largest = 0;  // of FP32 one magnitude, else two lanes of them
  for_each_pack<width, kAmaxUnroll>(
      thread, static_cast<const Bits*>(arguments.x), arguments.size,
      [&]<int size>(const Pack<Bits, size>& pack, std::int64_t) {
        if constexpr (sizeof(Bits) == 2 && size % 2 == 0) {
          TELENS_UNROLL
          for (int i = 0; i < size; i += 2) {
            const std::uint32_t pair =
                pack.values[i] | static_cast<std::uint32_t>(pack.values[i + 1]) << 16;
            largest = max_u16x2(largest, pair & 0x7fff7fffU);
          }
        } else {
          TELENS_UNROLL
          for (int i = 0; i < size; ++i) {
            const std::uint32_t magnitude = pack.values[i] & Format::kMagnitudeMask;
            if constexpr (sizeof(Bits) == 2) {
              largest = max_u16x2(largest, magnitude);
            } else {
              largest = magnitude > largest ? magnitude : largest;
            }
          }
        }
      });
  if constexpr (sizeof(Bits) == 2) {
    const std::uint32_t low = largest & 0xffffU;
    const std::uint32_t high = largest >> 16;
    largest = low > high ? low : high;
  }
  update_amax<Format>(thread, largest, arguments.amax, shared);
}

}  // namespace telens::cuda
