// Reading memory in packs of 16 bytes, with several loads in flight per thread, and reductions over
// a block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats/convert.h"
#include "core/kernels/cuda/thread.cuh"

namespace telens::cuda {

// Elements that are loaded and stored together. A pack of up to 16 bytes is one load or store.
template <typename T, int size>
struct alignas(sizeof(T) * size < 16 ? sizeof(T) * size : 16) Pack {
  T values[size];
};

template <int size, typename T>
TELENS_DEVICE Pack<T, size> load_pack(const T* address) {
  return *reinterpret_cast<const Pack<T, size>*>(address);
}

template <int size, typename T>
TELENS_DEVICE void store_pack(T* address, const Pack<T, size>& pack) {
  *reinterpret_cast<Pack<T, size>*>(address) = pack;
}

// The loader of for_each for neighboring elements.
struct AsPacks {
  template <int size, typename T>
  static TELENS_DEVICE Pack<T, size> load(const T* address) {
    return load_pack<size>(address);
  }
};

// Calls visit(pack, offset) for packs that cover each element below `size` once: packs of `width`
// elements at multiples of `width`, then packs of one. All threads of the grid share the work. Each
// loads `unroll` packs before it visits the first. If width > 1, x must be aligned to a pack.
// Loader: AsPacks, or AsWords (words.cuh).
template <int width, int unroll, typename Loader = AsPacks, typename T, typename Thread,
          typename Visit>
TELENS_DEVICE void for_each_pack(const Thread& thread, const T* x, std::int64_t size,
                                 Visit&& visit) {
  constexpr std::int64_t kStep = std::int64_t{kThreads} * width;
  constexpr std::int64_t kTile = kStep * unroll;
  for (std::int64_t tile = thread.block() * kTile; tile < size; tile += thread.blocks() * kTile) {
    const std::int64_t first = tile + thread.index() * width;
    if (tile + kTile <= size) {
      decltype(Loader::template load<width>(x)) packs[unroll];
      TELENS_UNROLL
      for (int i = 0; i < unroll; ++i)
        packs[i] = Loader::template load<width>(x + first + i * kStep);
      TELENS_UNROLL
      for (int i = 0; i < unroll; ++i) visit(packs[i], first + i * kStep);
    } else {
      for (std::int64_t i = first; i + width <= size; i += kStep) {
        visit(Loader::template load<width>(x + i), i);
      }
      if constexpr (width > 1) {
        const std::int64_t last = size - size % width + thread.index();
        if (last < size) visit(Loader::template load<1>(x + last), last);
      }
    }
  }
}

// Returns the number of elements that a block covers per iteration, from which a launcher computes
// the grid.
constexpr std::int64_t get_tile(int width, int unroll) {
  return std::int64_t{kThreads} * width * unroll;
}

// Elements in 16 bytes.
template <typename T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

// One value per warp.
struct BlockMaximum {
  std::uint32_t of_warp[kThreads / kWarp];
};

// Returns the largest value of a block to the threads of its first warp.
template <typename Thread>
TELENS_DEVICE std::uint32_t largest_of_block(const Thread& thread, std::uint32_t value,
                                             BlockMaximum& shared) {
  const auto of_warp = [&](std::uint32_t mine, int lanes) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
      const std::uint32_t other = thread.shuffle_xor(mine, mask);
      mine = other > mine ? other : mine;
    }
    return mine;
  };
  value = of_warp(value, kWarp);
  if (thread.index() % kWarp == 0) shared.of_warp[thread.index() / kWarp] = value;
  thread.sync();
  constexpr int kWarps = kThreads / kWarp;
  if (thread.index() < kWarp) {
    value = of_warp(shared.of_warp[thread.index() % kWarps], kWarps);
  }
  return value;
}

// amax = max(amax, magnitude) over the whole grid. Magnitudes are unsigned codes of Format. Bits of
// nonnegative FP32 numbers have the order of the values, with NaNs above all. Every thread must
// call it.
template <typename Format, typename Thread>
TELENS_DEVICE void update_amax(const Thread& thread, std::uint32_t magnitude, float* amax,
                               BlockMaximum& shared) {
  magnitude = largest_of_block(thread, magnitude, shared);
  if (thread.index() == 0 && magnitude > 0) {
    // decode turns every NaN into the quiet one, whatever its payload.
    const float value = decode<Format>(static_cast<typename Format::Bits>(magnitude));
    thread.atomic_max(reinterpret_cast<std::uint32_t*>(amax), bits_as<std::uint32_t>(value));
  }
}

}  // namespace telens::cuda
