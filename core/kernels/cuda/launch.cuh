// Helpers of all launchers: from formats known at run time to types, grids.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/formats/formats.h"
#include "core/kernels/cuda/thread.cuh"

namespace telens::cuda {

inline constexpr int kMaxDevices = 64;

// A launcher gets its stream and the card's multiprocessors; it returns the error of the launch.
struct LaunchContext {
  cudaStream_t stream;
  int multiprocessors;
  int device;                          // the current one
  const std::int64_t* gate = nullptr;  // ops::current_gate()
};

#if defined(__CUDACC__)
// True if a kernel that looks at the gate has nothing to do in this run.
TELENS_DEVICE bool is_shut(const std::int64_t* gate) { return gate != nullptr && *gate == 0; }
#endif

// Calls visitor.operator()<Format>(), which returns a cudaError_t. Callers have checked the format.
// core/formats/dispatch.h does the same for the host, but throws with a text, and nvcc would parse
// fmt once a target for it.
template <typename Visitor>
cudaError_t dispatch_high_precision(FormatId format, Visitor&& visitor) {
  switch (format) {
    case FormatId::bf16:
      return std::forward<Visitor>(visitor).template operator()<BF16>();
    case FormatId::fp16:
      return std::forward<Visitor>(visitor).template operator()<FP16>();
    case FormatId::fp32:
      return std::forward<Visitor>(visitor).template operator()<FP32>();
    default:
      return cudaErrorInvalidValue;
  }
}

template <typename Visitor>
cudaError_t dispatch_fp8(FormatId format, Visitor&& visitor) {
  switch (format) {
    case FormatId::e4m3:
      return std::forward<Visitor>(visitor).template operator()<E4M3>();
    case FormatId::e5m2:
      return std::forward<Visitor>(visitor).template operator()<E5M2>();
    default:
      return cudaErrorInvalidValue;
  }
}

// Blocks for `work` pieces, of which a block takes one at a time: as many as are resident at once,
// so that no block waits for a place.
inline unsigned grid_for(std::int64_t work, int blocks_per_multiprocessor,
                         const LaunchContext& context) {
  const std::int64_t resident = std::int64_t{context.multiprocessors} * blocks_per_multiprocessor;
  return static_cast<unsigned>(std::clamp<std::int64_t>(work, 1, resident));
}

#if defined(__CUDACC__)
// Blocks that a multiprocessor of the current device holds of a kernel, as its registers and shared
// memory let it: of kernels whose formats take unlike many registers, and whose result no grid
// changes. Asked once a device. An error shows at the launch.
template <auto kernel>
int count_resident(int device) {
  static std::array<std::atomic<int>, kMaxDevices> known{};
  std::atomic<int>& blocks = known[static_cast<std::size_t>(device)];
  int count = blocks.load(std::memory_order_relaxed);
  if (count != 0) return count;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, kThreads, 0);
  blocks.store(count, std::memory_order_relaxed);
  return std::max(count, 1);
}
#endif

inline bool is_aligned(const void* address, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

}  // namespace telens::cuda
