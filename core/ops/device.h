// Device differences, and graph captures on a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace telens::ops {

// Device differences that matter for LibTorch's own operators.

// Returns true if reading its values does not wait for a device.
inline bool is_on_host(const at::Tensor& tensor) { return tensor.is_cpu(); }

// Returns true if LibTorch's BF16 GEMM on the CPU runs on AVX512-BF16 or AMX instructions. Without
// them it is 5 to 100 times slower than its FP32 GEMM. Returns false if ATEN_CPU_CAPABILITY
// disables AVX-512 in LibTorch.
bool has_native_bf16();

// Returns true if products of this tensor should be computed in FP32: a BF16 tensor on a CPU
// without BF16 instructions. FP32 holds the operands and their products exactly.
inline bool multiplies_in_fp32(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 && tensor.is_cpu() && !has_native_bf16();
}

// Returns true if scaled_dot_product_attention accepts an additive FP32 mask with 16-bit tensors.
// The memory-efficient kernel of CUDA rejects one.
inline bool takes_wider_mask(const at::Tensor& query) { return query.is_cpu(); }

// Returns true if flash accepts FP32 tensors and is the only fast kernel. On CUDA, flash accepts
// only 16-bit tensors, and cuDNN's and the memory-efficient kernel are fast, too.
inline bool has_flash_alone(const at::Tensor& query) { return query.is_cpu(); }

// The devices for which the operators have kernels.

// Returns true if this build has kernels for the device's type. "meta" counts: shapes have kernels.
TELENS_EXPORT bool runs_on(const c10::Device& device);

// Throws UsageError naming the layer and the device unless runs_on(device).
TELENS_EXPORT void check_has_kernels(const c10::Device& device, const std::string& layer);
// Like check_has_kernels, but without a call for the CPU, for which every build has kernels.
inline void check_runs_on(const c10::Device& device, const std::string& layer) {
  if (!device.is_cpu()) check_has_kernels(device, layer);
}

// Graphs (CUDA graphs): kernels are captured once and run again on each replay. The host does not
// observe replays.

// Returns true if work that is enqueued for x's device now becomes part of a graph instead of
// running. The operator `telens::is_capturing`; false on devices without graphs.
bool is_capturing(const at::Tensor& x);

// Returns true if `is_capturing` can ever be true for tensors on the device, that is, if it has a
// kernel for such devices.
bool has_graphs(const at::Device& device);

// During its lifetime, the kernels of `accumulate_...` operators that this thread enqueues, and the
// kernels that compute the amax for their scales, read a word on their device when they run and do
// nothing if it is 0. The word is the only thing that can still change in a graph. Enqueue nothing
// else in this scope: the results of other operators may never be written.
class GateScope {
 public:
  // `word` must live as long as the graph.
  explicit GateScope(const std::int64_t* word);
  ~GateScope();
  GateScope(const GateScope&) = delete;
  GateScope& operator=(const GateScope&) = delete;

 private:
  const std::int64_t* before_;
};

// For the kernels. Returns nullptr if no gate is set.
const std::int64_t* current_gate();
// For kernels that run at once.
inline bool gate_is_shut() { return current_gate() != nullptr && *current_gate() == 0; }

// Returns a new int64 vector of these words on the device: constants with which operators begin.
// The first call copies them from the host, which waits for the device. Later calls copy within the
// device, in the order of its current stream. Throws UsageError if the first call is in a graph
// capture.
at::Tensor constants_on(const at::Device& device, const std::vector<std::int64_t>& words);

}  // namespace telens::ops
