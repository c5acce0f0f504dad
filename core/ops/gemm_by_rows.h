// Products of packed FP4 under a scale for each row of an operand: the product of the operands as
// if those scales were 1, on any device, whose FP32 sums they then multiply.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/ops/gemm.h"

namespace telens::ops {

class GemmByRows {
 public:
  GemmByRows(const GemmOperand& a, const GemmOperand& b);

  // The operands under scales of 1. They refer to this object and to the given ones.
  GemmOperand a() const { return with_ones(a_); }
  GemmOperand b() const { return with_ones(b_); }

  // FP32 sums [M, N] of a() and b() -> those of the operands. Scales are multiplied in FP64, where
  // their product is exact and stays in range; a sum times it becomes FP32.
  at::Tensor scaled(at::Tensor sums) const;

 private:
  GemmOperand with_ones(const GemmOperand& operand) const;

  const GemmOperand& a_;
  const GemmOperand& b_;
  at::Tensor one_;
};

}  // namespace telens::ops
