// One matrix product through cuBLASLt, described with types of this library. Includes no CUDA
// header, so the description and its key are tested without a GPU.
// core/kernels/cuda/gemm/cublaslt.h runs it.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/formats/format_id.h"
#include "core/formats/scheme.h"

namespace telens::cuda {

// Workspace in bytes that a product may use: NVIDIA's recommendation for Hopper and newer.
inline constexpr std::size_t kLtWorkspaceBytes = std::size_t{32} << 20;

// A matrix [rows, K].
struct LtOperand {
  const void* data;
  FormatId format;
  std::int64_t leading;     // elements between rows, or between columns if transposed
  bool transposed = false;  // column-major in memory
  // The scales of codes, in cuBLASLt's order (core/kernels/cuda/gemm/scale_layouts.cuh); nullptr
  // for high precision.
  const void* scales = nullptr;
  ScalingMode scaling = ScalingMode::tensor;
};

// D[M, N] = alpha A[M, K] x B[N, K]^T + beta D + bias[N]
struct LtGemm {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;
  LtOperand a;
  LtOperand b;
  void* out;  // row-major
  FormatId out_format;
  std::int64_t out_leading;
  const void* bias = nullptr;
  FormatId bias_format = FormatId::bf16;
  bool accumulate = false;  // beta is 1: adds to `out` instead of overwriting it
  // Hopper: accumulates in the FP8 unit only, without promotion to FP32.
  bool fast_accumulation = false;
  bool tf32 = false;  // FP32 operands may be rounded to TF32
  // Pointers on the device, both or neither: alpha, and beta according to `accumulate`. nullptr:
  // alpha is 1.
  const float* alpha = nullptr;
  const float* beta = nullptr;
};

// "[M, N, K] = [256, 512, 128], A E4M3 in 1x128 blocks, B E4M3 in 128x128 blocks -> BF16, bias
// BF16, split accumulator": for error messages and the list of choices.
std::string describe(const LtGemm& gemm);

// The largest power of two, at most 256, that divides an address.
std::uint32_t get_alignment(const void* address);

// Everything on which cuBLASLt's choice of an algorithm may depend. Products with equal keys run
// the same algorithm.
struct LtKey {
  int device;
  std::array<std::int64_t, 6> sizes;
  std::array<int, 13> kinds;
  std::array<std::uint32_t, 4> alignments;

  auto operator<=>(const LtKey&) const = default;
};
LtKey make_key(const LtGemm& gemm, int device);

}  // namespace telens::cuda
