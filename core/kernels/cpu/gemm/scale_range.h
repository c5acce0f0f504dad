// Bounds on values that the scales of their blocks give, without decoding any.
#pragma once

#include "core/ops/gemm.h"

namespace telens {

// True if all of a 128-block tensor's FP32 scales are normal powers of two (2^-127, the smallest
// scale, counts as none).
bool has_powers_of_two(const at::Tensor& scales);

// An exponent e such that all values of the operand, before a scale of the whole tensor multiplies
// them, are multiples of 2^e: 2^e is the smallest nonzero value of its format under the smallest
// scale of a block. Scales of 128-blocks must be powers of two. Under E8M0 scales, blocks of zeros
// do not count; of 128-blocks they count with their scale, 1.
int exponent_of_smallest_value(const ops::GemmOperand& operand);

// True if a product of the operands may leave FP32's range on its way to a result that does not:
// the product of two scales of tensors that is no normal number (NaN among them); values under
// scales of blocks that are powers of two, beyond FP32's largest; sums of 128-blocks under the left
// scale alone, where scales are no powers of two.
bool leaves_fp32(const ops::GemmOperand& a, const ops::GemmOperand& b);

}  // namespace telens
