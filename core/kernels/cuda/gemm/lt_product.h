// Tensors as the operands of cuBLASLt's products.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/gemm/lt_gemm.h"

namespace telens::cuda {

FormatId get_format(at::ScalarType dtype);  // BF16, FP16 and FP32 have one

// How a matrix [rows, K] lies in memory. One whose rows and columns both lie scattered is replaced
// by a dense copy.
LtOperand get_operand(at::Tensor& matrix, FormatId format);

// A bias as the products read it: contiguous and aligned. Undefined if it is.
at::Tensor dense_bias(const at::Tensor& bias);

// Enqueues the product on the current stream with a workspace from the allocator's cache, which
// keeps it for that stream; false where cuBLASLt has no algorithm for it. A workspace that does not
// fit is a c10::OutOfMemoryError with the product's description.
[[nodiscard]] bool try_product(const DeviceScope& scope, const LtGemm& gemm,
                               const at::Device& device);

// The same; UsageError with the product's description where cuBLASLt has no algorithm for it.
void run_product(const DeviceScope& scope, const LtGemm& gemm, const at::Device& device);

// FP32 sums [M, N] of BF16 matrices.
at::Tensor bf16_product(const DeviceScope& scope, at::Tensor a, at::Tensor b);

}  // namespace telens::cuda
