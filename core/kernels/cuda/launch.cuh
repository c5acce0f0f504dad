// Helpers for all launchers: dispatch from runtime formats to types, and grid sizes.
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

// The stream and the device on which a launcher runs. A launcher returns the error of the launch.
struct LaunchContext {
  cudaStream_t stream;
  int multiprocessors;
  int device;                          // the current device
  const std::int64_t* gate = nullptr;  // ops::current_gate()
};

#if defined(__CUDACC__)
// Returns true if the gate disables a gated kernel in this run.
TELENS_DEVICE bool is_shut(const std::int64_t* gate) { return gate != nullptr && *gate == 0; }
#endif

// Calls visitor.operator()<Format>(), which returns a cudaError_t. Callers have checked the format.
// Unlike core/formats/dispatch.h on the host it does not throw with a text, because nvcc would
// parse fmt for every target.
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

// Returns the grid size for `work` pieces; a block processes one piece at a time. Limited to the
// number of resident blocks, so that no block waits to be scheduled.
inline unsigned grid_for(std::int64_t work, int blocks_per_multiprocessor,
                         const LaunchContext& context) {
  const std::int64_t resident = std::int64_t{context.multiprocessors} * blocks_per_multiprocessor;
  return static_cast<unsigned>(std::clamp<std::int64_t>(work, 1, resident));
}

#if defined(__CUDACC__)
// Returns the number of blocks of a kernel that are resident on a multiprocessor of the current
// device, given its registers and shared memory. For kernels whose register count depends on the
// format and whose result does not depend on the grid. Queried once per device. An error is
// reported by the launch.
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
