// cuBLASLt's own products of quantized operands.
#pragma once

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/gemm/gemm_plan.h"
#include "core/ops/gemm.h"

namespace telens::cuda {

struct NativeGemm {
  const GemmPlan& plan;  // a native one
  const ops::GemmOperand& a;
  const ops::GemmOperand& b;
  at::Tensor bias;  // 16 bits and dense, or undefined
  bool accumulate = false;
  bool fast_accumulation = false;  // where cuBLASLt has it: one scale a tensor
};

// The number of values, also where two codes share a byte.
std::int64_t values_along_k(const ops::GemmOperand& operand);

// Writes to out, [M, N] and contiguous, or adds to it. Brings codes and scales into the order that
// cuBLASLt wants where they are not in it. False, and out is as it was, where cuBLASLt has no
// algorithm for the product after all.
[[nodiscard]] bool try_native(const DeviceScope& scope, const NativeGemm& gemm,
                              const at::Tensor& out);

}  // namespace telens::cuda
