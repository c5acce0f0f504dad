// One matrix product through cuBLASLt: D[M, N] = A[M, K] x B[N, K]^T, all matrices row-major.
//
// cuBLASLt counts columns first: a row-major [rows, K] matrix is its column-major [K, rows], so
// this is its D^T = B x A^T with the first operand transposed, the "TN" form that FP8 needs on
// Hopper.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <string>

namespace telens::cuda {

// How an operand's scales lie; `none` for high-precision operands.
struct LtScale {
  const void* data = nullptr;  // nullptr: none
  cublasLtMatmulMatrixScale_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
};

struct LtOperand {
  const void* data;  // [rows, K], contiguous
  cudaDataType_t type;
  LtScale scale;
};

struct LtGemm {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  LtOperand a;  // [M, K]
  LtOperand b;  // [N, K]
  void* out;    // [M, N], contiguous
  cudaDataType_t out_type;
  const void* bias = nullptr;  // [N]; nullptr: none
  cudaDataType_t bias_type = CUDA_R_16BF;
  bool accumulate = false;         // adds to what `out` (FP32) holds instead of replacing it
  bool fast_accumulation = false;  // Hopper's FP8 accumulator alone, not moved to FP32 in between
};

// Bytes of workspace that run_lt_gemm wants: what NVIDIA recommends for Hopper and newer.
inline constexpr std::size_t kLtWorkspaceBytes = std::size_t{32} << 20;

// Enqueues the product. The algorithm is the first that cuBLASLt's heuristic proposes for a
// description (shapes, types, alignments), kept for the life of the process: the same description
// runs the same algorithm. Throws telens::Error with the description and cuBLASLt's name of the
// status, UsageError if cuBLASLt has no algorithm for it.
void run_lt_gemm(const LtGemm& gemm, int device, void* workspace, cudaStream_t stream);

// "[M, N, K] = [...], A E4M3, B E5M2 -> BF16, bias BF16, split accumulator": for error messages.
std::string describe(const LtGemm& gemm);

// Which algorithm run_lt_gemm chose for every description so far, one line each, sorted.
std::string lt_algorithms();

}  // namespace telens::cuda
