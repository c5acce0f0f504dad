// Products of quantized operands out of BF16 products with FP32 sums, which every card has. Nothing
// here knows a device: the product is handed in, and everything around it is tensor operations, so
// that the tests run it on the CPU against the CPU's operator. No value is read on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

#include "core/ops/gemm.h"

namespace telens::cuda {

// FP32 sums [M, N] of BF16 matrices [M, K] and [N, K] of any strides.
using Bf16Product = std::function<at::Tensor(const at::Tensor& a, const at::Tensor& b)>;

// FP32 [M, N]: the product without bias, not yet rounded. M, N and K are not zero.
//
// A scale a tensor, packed FP4: codes (under E4M3 scales) are BF16 values, products of two lie
// between
//   2^-32 and 2^32: exact. The scales of the tensors multiply the sums, in FP64.
// E8M0 scales: a code under one is a BF16 value where that does not leave the range of
//   exponents. So an even exponent is taken out of each row's scales, which makes the row's largest
//   1 or 2, and put back into the sums. Exact for values within 2^-117 (E5M2: 2^-110) of the row's
//   largest scale; beyond, and for products below 2^-126, an element of the result is off by at
//   most K x 2^-100 x (largest scale of a's row) x (largest scale of b's row).
// 128-blocks: whether their FP32 scales are powers of two only the device knows, so codes are
//   multiplied by blocks of K, and the scales (with exponents taken out of rows as above, so that
//   none over- or underflows) multiply the FP32 sum of each block.
at::Tensor emulated_sums(const ops::GemmOperand& a, const ops::GemmOperand& b,
                         const Bf16Product& multiply);

// Adds a bias (of 16 bits, or undefined) and rounds once.
at::Tensor with_bias(at::Tensor sums, const at::Tensor& bias, at::ScalarType dtype);

}  // namespace telens::cuda
