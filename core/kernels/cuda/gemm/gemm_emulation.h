// Products of quantized operands, emulated with BF16 products with FP32 sums, which every card
// supports. This code does not depend on a device: the product is a parameter and everything else
// is tensor operations, so tests compare it with the CPU's operator on the CPU. No value is read on
// the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "core/ops/gemm.h"

namespace telens::cuda {

// Computes FP32 sums [M, N] of BF16 matrices [M, K] and [N, K] with any strides.
using Bf16Product = std::function<at::Tensor(const at::Tensor& a, const at::Tensor& b)>;

// Returns FP32 [M, N]: the product before bias and rounding. M, N and K are not zero.
//
// - Per-tensor scales and packed FP4: codes (with E4M3 scales) are BF16 values, and products of two
//   are between 2^-32 and 2^32: exact. The per-tensor scales multiply the sums in FP64.
// - E8M0 scales: a code with its scale is a BF16 value unless its exponent is out of range. So an
//   even exponent is moved from each row's scales to the sums, which makes the row's largest scale
//   1 or 2. Exact for values within 2^-117 (E5M2: 2^-110) of the row's largest scale. Beyond that,
//   and for products below 2^-126, an element's error is at most K x 2^-100 x (largest scale of a's
//   row) x (largest scale of b's row).
// - 128-blocks: only the device knows if their FP32 scales are powers of two, so codes are
//   multiplied by blocks of K. The scales, with exponents moved out of rows as above so that none
//   over- or underflows, multiply the FP32 sum of each block.
at::Tensor emulated_sums(const ops::GemmOperand& a, const ops::GemmOperand& b,
                         const Bf16Product& multiply);

// Adds a bias (16-bit, or undefined) and rounds once.
at::Tensor with_bias(at::Tensor sums, const at::Tensor& bias, at::ScalarType dtype);

}  // namespace telens::cuda
