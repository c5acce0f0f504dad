// One matrix product through cuBLASLt: D[M, N] = A[M, K] x B[N, K]^T, all matrices row-major or,
// the operands, column-major.
//
// cuBLASLt counts columns first: a row-major [rows, K] matrix is its column-major [K, rows], so
// this is its D^T = B x A^T with the first operand transposed, the "TN" form that FP8 needs on
// Hopper.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "core/kernels/cuda/gemm/lt_gemm.h"

namespace telens::cuda {

// Enqueues the product; false, and nothing is enqueued, where cuBLASLt has no algorithm for it on
// this card. The algorithm is the first that cuBLASLt's heuristic proposes for a description
// (make_key), kept for the life of the process: the same description runs the same algorithm.
// Partial sums of a product that is split along K are added in FP32. `workspace` has
// kLtWorkspaceBytes, aligned to 256. Throws telens::Error with the description and cuBLASLt's name
// of the status.
[[nodiscard]] bool run_lt_gemm(const LtGemm& gemm, int device, void* workspace,
                               cudaStream_t stream);

// The algorithm that run_lt_gemm chose for every description so far, one line each, sorted.
std::vector<std::string> lt_algorithms();

}  // namespace telens::cuda
