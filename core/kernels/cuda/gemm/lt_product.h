// Tensors as the operands of cuBLASLt's products.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/gemm/lt_gemm.h"

namespace telens::cuda {

FormatId get_format(at::ScalarType dtype);  // dtype: BF16, FP16 or FP32

// Describes the memory layout of a matrix [rows, K]. Replaces `matrix` by a dense copy if neither
// rows nor columns are contiguous.
LtOperand get_operand(at::Tensor& matrix, FormatId format);

// Returns a contiguous, aligned bias for the products; undefined if `bias` is.
at::Tensor dense_bias(const at::Tensor& bias);

// Enqueues the product on the current stream. The workspace comes from the allocator's cache, which
// keeps it for that stream. Returns false if cuBLASLt has no algorithm for the product. Throws
// c10::OutOfMemoryError with the product's description if the workspace cannot be allocated.
[[nodiscard]] bool try_product(const DeviceScope& scope, const LtGemm& gemm,
                               const at::Device& device);

// Like try_product, but throws UsageError with the product's description if cuBLASLt has no
// algorithm.
void run_product(const DeviceScope& scope, const LtGemm& gemm, const at::Device& device);

// Returns FP32 sums [M, N] of BF16 matrices.
at::Tensor bf16_product(const DeviceScope& scope, at::Tensor a, at::Tensor b);

}  // namespace telens::cuda
