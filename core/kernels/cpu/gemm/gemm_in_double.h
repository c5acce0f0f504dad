// Products of quantized operands in FP64, for scales that FP32 cannot apply one after the other.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/ops/gemm.h"

namespace telens {

// Returns the scales of 128-blocks for each row, [rows, blocks of K].
at::Tensor scales_of_rows(const ops::GemmOperand& operand);

// Returns the product as FP32 [M, N]. The operands' values, with all scales, are multiplied and
// added in FP64 and rounded once.
at::Tensor product_in_double(const ops::GemmOperand& a, const ops::GemmOperand& b);

}  // namespace telens
