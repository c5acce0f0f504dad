// Bounds of an operand's values, derived from block scales without decoding.
#pragma once

#include "core/ops/gemm.h"

namespace telens {

// Returns true if all FP32 scales of a 128-block tensor are normal powers of two. 2^-127, the
// smallest scale, is not normal.
bool has_powers_of_two(const at::Tensor& scales);

// Returns an exponent e such that all values of the operand, without a per-tensor scale, are
// multiples of 2^e. 2^e is the smallest nonzero value of the format times the smallest block scale.
// Scales of 128-blocks must be powers of two. Blocks of zeros are ignored under E8M0 scales; in
// 128-blocks they have scale 1, which is used.
int exponent_of_smallest_value(const ops::GemmOperand& operand);

// Returns true if a product of the operands may leave FP32's range although the result does not:
// - the product of two per-tensor scales is not a normal number (for example NaN);
// - values under power-of-two block scales exceed FP32's largest number;
// - scales of 128-blocks are not powers of two, and sums under the left scale only may leave the
//   range.
bool leaves_fp32(const ops::GemmOperand& a, const ops::GemmOperand& b);

}  // namespace telens
