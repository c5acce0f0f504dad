// Device code. max |x|.
#pragma once

#include "core/kernels/cuda/quantize/block_maxima.cuh"

namespace telens::cuda {

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
