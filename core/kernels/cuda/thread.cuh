// The interface between device code and the machine: a `Thread` parameter with the members of
// GpuThread. The tests instantiate the same device code with a thread that runs on the host, with
// real barriers and shuffles (tests/core/cuda/host_grid.h).
//
// Device code is a template function over Thread in a .cuh file. It is compiled by nvcc for the GPU
// and by the host compiler for those tests. Its __global__ function and its launcher are in the .cu
// file of the same name. No .cuh or .cu file includes a LibTorch header.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TELENS_DEVICE __device__ __forceinline__
// Placed before a loop whose counter indexes registers.
#define TELENS_UNROLL _Pragma("unroll")
#else
#define TELENS_DEVICE inline
#define TELENS_UNROLL
#endif

namespace telens::cuda {

// Threads per block, unless a kernel specifies another number.
inline constexpr int kThreads = 256;
inline constexpr int kWarp = 32;

// Returns the number of resident blocks per multiprocessor if each thread uses `registers`
// registers. A multiprocessor has 64 Ki registers on every card since Volta.
constexpr int blocks_with(int registers) { return 64 * 1024 / (kThreads * registers); }

#if defined(__CUDACC__)

// One-dimensional grids and blocks; a block is a whole number of warps.
struct GpuThread {
  TELENS_DEVICE int index() const { return static_cast<int>(threadIdx.x); }
  TELENS_DEVICE std::int64_t block() const { return blockIdx.x; }
  TELENS_DEVICE std::int64_t blocks() const { return gridDim.x; }

  // A barrier for all threads of the block. Shared and global writes before it are visible after
  // it.
  TELENS_DEVICE void sync() const { __syncthreads(); }

  // All 32 threads of the warp must call it.
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
