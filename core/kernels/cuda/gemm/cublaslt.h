// Matrix products through cuBLASLt: D[M, N] = A[M, K] x B[N, K]^T. All matrices are row-major; the
// operands may also be column-major.
//
// cuBLASLt counts columns first: a row-major [rows, K] matrix is column-major [K, rows] for it. So
// this product is D^T = B x A^T with the first operand transposed, the "TN" form that FP8 requires
// on Hopper.
#pragma once

#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/gemm/lt_gemm.h"

namespace telens::cuda {

// Enqueues the product. Returns false, without enqueuing anything, if cuBLASLt has no algorithm for
// it on this card. The algorithm is the first one that cuBLASLt's heuristic proposes for a
// description (make_key). It is kept for the life of the process, so the same description always
// runs the same algorithm. Partial sums of a product that is split along K are added in FP32.
// `workspace` has kLtWorkspaceBytes and is aligned to 256 bytes. Throws telens::Error with the
// description and cuBLASLt's name of the status.
[[nodiscard]] bool run_lt_gemm(const LtGemm& gemm, int device, void* workspace,
                               cudaStream_t stream);

// Returns the algorithm that run_lt_gemm chose for each description, one per line, sorted.
std::vector<std::string> lt_algorithms();

// ---- Products of tensors.

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
