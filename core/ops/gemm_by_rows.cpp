#include "core/ops/gemm_by_rows.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>

#include <utility>

namespace telens::ops {

GemmByRows::GemmByRows(const GemmOperand& a, const GemmOperand& b)
    : a_(a), b_(b), one_(at::ones({1}, a.codes.options().dtype(at::kFloat))) {}

GemmOperand GemmByRows::with_ones(const GemmOperand& operand) const {
  return {operand.codes,  operand.scale_inv, one_,
          operand.format, operand.mode,      operand.power_of_2_scales};
}

// [M, 1] or [1, 1] times [1, N] or [1, 1]: there are as many factors as sums only if both operands
// have scales of rows.
at::Tensor GemmByRows::scaled(at::Tensor sums) const {
  const at::Tensor of_rows = a_.tensor_scale.to(at::kDouble).view({-1, 1});
  const at::Tensor of_columns = b_.tensor_scale.to(at::kDouble).view({1, -1});
  return sums.mul_(at::mul(of_rows, of_columns));
}

}  // namespace telens::ops
