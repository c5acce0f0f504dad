// Device differences that matter for LibTorch's own operators.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

namespace telens::ops {

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

// Returns true if every kernel of scaled_dot_product_attention that LibTorch would choose gives the
// same bits in each run. On CUDA, the flash and memory-efficient kernels add up gradients in any
// order unless torch.use_deterministic_algorithms(True) requests a fixed order; cuDNN is then not
// chosen.
inline bool attention_is_deterministic(const at::Tensor& query) {
  const at::Context& context = at::globalContext();
  return query.is_cpu() ||
         (context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly());
}

// Returns true if flash accepts FP32 tensors and is the only fast kernel. On CUDA, flash accepts
// only 16-bit tensors, and cuDNN's and the memory-efficient kernel are fast, too.
inline bool has_flash_alone(const at::Tensor& query) { return query.is_cpu(); }

}  // namespace telens::ops
