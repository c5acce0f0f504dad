// Products of quantized operands by cuBLASLt.
#pragma once

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/gemm/gemm_plan.h"
#include "core/ops/gemm.h"

namespace telens::cuda {

struct NativeGemm {
  const GemmPlan& plan;  // a native plan
  const ops::GemmOperand& a;
  const ops::GemmOperand& b;
  at::Tensor bias;  // 16-bit and dense, or undefined
  bool accumulate = false;
  bool fast_accumulation = false;  // if cuBLASLt supports it: per-tensor scales
};

// Returns the number of values, also if two codes share a byte.
std::int64_t values_along_k(const ops::GemmOperand& operand);

// Writes the product to `out`, [M, N] and contiguous, or adds it. Rearranges codes and scales to
// cuBLASLt's layout if necessary. Returns false, without changing `out`, if cuBLASLt has no
// algorithm for the product.
[[nodiscard]] bool try_native(const DeviceScope& scope, const NativeGemm& gemm,
                              const at::Tensor& out);

}  // namespace telens::cuda
