// Products of packed FP4 with one scale per row of an operand: multiplies the operands as if those
// scales were 1, on any device, then multiplies the FP32 sums by the scales.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/ops/gemm.h"

namespace telens::ops {

class GemmByRows {
 public:
  GemmByRows(const GemmOperand& a, const GemmOperand& b);

  // The operands with scales of 1. They refer to this object and to the given operands.
  GemmOperand a() const { return with_ones(a_); }
  GemmOperand b() const { return with_ones(b_); }

  // Converts FP32 sums [M, N] of a() and b() to the sums of the operands. Scales are multiplied in
  // FP64, in which their product is exact and in range; the scaled sum is rounded to FP32.
  at::Tensor scaled(at::Tensor sums) const;

 private:
  GemmOperand with_ones(const GemmOperand& operand) const;

  const GemmOperand& a_;
  const GemmOperand& b_;
  at::Tensor one_;
};

}  // namespace telens::ops
