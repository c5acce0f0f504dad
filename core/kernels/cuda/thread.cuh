// The machine as device code sees it: a `Thread` parameter with the members of GpuThread. The
// tests instantiate the same device code with a thread that runs on the host
// (tests/core/cuda/host_grid.h), where barriers and shuffles are real ones.
//
// Device code is a template function over Thread in a .cuh file, compiled by nvcc for the GPU alone
// and by the host compiler for those tests. Its __global__ function and its launcher stand in the
// .cu file of the same name. No file of either kind includes a LibTorch header.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TELENS_DEVICE __device__ __forceinline__
// Before a loop whose registers are indexed by its counter.
#define TELENS_UNROLL _Pragma("unroll")
#else
#define TELENS_DEVICE inline
#define TELENS_UNROLL
#endif

namespace telens::cuda {

// Threads of a block, in every kernel that does not say otherwise.
inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;

// Blocks of threads that a multiprocessor holds at once if a thread takes so many of its registers,
// of which it has 64 Ki on every card since Volta.
constexpr int blocks_with(int registers) { return 64 * 1024 / (kThreads * registers); }

#if defined(__CUDACC__)

// One-dimensional grids and blocks; a block is a whole number of warps.
struct GpuThread {
  TELENS_DEVICE int index() const { return static_cast<int>(threadIdx.x); }
  TELENS_DEVICE std::int64_t block() const { return blockIdx.x; }
  TELENS_DEVICE std::int64_t blocks() const { return gridDim.x; }

  // All threads of the block wait here; shared and global writes before it are visible after it.
  TELENS_DEVICE void sync() const { __syncthreads(); }

  // All 32 threads of the warp must take part.
  template <typename T>
  TELENS_DEVICE T shuffle_xor(T value, int lane_mask) const {
    return __shfl_xor_sync(0xffffffffU, value, lane_mask);
  }
  TELENS_DEVICE std::uint32_t ballot(bool predicate) const {
    return __ballot_sync(0xffffffffU, predicate);
  }

  TELENS_DEVICE void atomic_max(std::uint32_t* address, std::uint32_t value) const {
    ::atomicMax(address, value);
  }
  TELENS_DEVICE void atomic_add(std::uint32_t* address, std::uint32_t value) const {
    ::atomicAdd(address, value);
  }
  TELENS_DEVICE void atomic_add(std::int64_t* address, std::int64_t value) const {
    ::atomicAdd(reinterpret_cast<unsigned long long*>(address),
                static_cast<unsigned long long>(value));
  }
};

#endif

}  // namespace telens::cuda
