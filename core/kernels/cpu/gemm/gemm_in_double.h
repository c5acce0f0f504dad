// Products of quantized operands in FP64, for scales that FP32 cannot apply one after the other.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/ops/gemm.h"

namespace telens {

// [rows, blocks of K]: the scales of 128-blocks row by row.
at::Tensor scales_of_rows(const ops::GemmOperand& operand);

// FP32 [M, N]: the operands' values, with all scales, multiplied and added in FP64, rounded once.
at::Tensor product_in_double(const ops::GemmOperand& a, const ops::GemmOperand& b);

}  // namespace telens
