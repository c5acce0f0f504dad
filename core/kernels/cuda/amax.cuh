// max |x|: device code.
#pragma once

#include "core/kernels/cuda/block_maxima.cuh"

namespace telens::cuda {

struct AmaxArguments {
  const void* x;
  std::int64_t size;
  float* amax;  // becomes max(amax, max |x|); not negative
};

inline constexpr int kAmaxUnroll = 4;

// NaNs among the elements are the largest, or left out; then the amax of nothing but NaNs is 0.
template <typename Format, int width, NanInMaximum nan = NanInMaximum::wins, typename Thread>
TELENS_DEVICE void amax(const AmaxArguments& arguments, const Thread& thread,
                        BlockMaximum& shared) {
  using Bits = typename Format::Bits;
  using Maxima = Magnitudes<Format, nan>;
  std::uint32_t largest = 0;  // in every lane
  for_each_pack<width, kAmaxUnroll>(thread, static_cast<const Bits*>(arguments.x), arguments.size,
                                    [&]<int size>(const Pack<Bits, size>& pack, std::int64_t) {
                                      if constexpr (size == 1) {
                                        largest = Maxima::larger(largest,
                                                                 Maxima::of_word(pack.values[0]));
                                      } else {
                                        TELENS_UNROLL
                                        for (const std::uint32_t word : Maxima::of(pack).values) {
                                          largest = Maxima::larger(largest, word);
                                        }
                                      }
                                    });
  update_amax<Format>(thread, Maxima::code(Maxima::largest_lane(largest)), arguments.amax, shared);
}

}  // namespace telens::cuda
