// What the scales of blocks tell about the values under them, without decoding any.
#pragma once

#include "core/ops/gemm.h"

namespace telens {

// Whether all of a 128-block tensor's FP32 scales are normal powers of two (2^-127, the smallest
// scale, counts as none).
bool has_powers_of_two(const at::Tensor& scales);

// An exponent e such that all values of the operand, before a scale of the whole tensor multiplies
// them, are multiples of 2^e: 2^e is the smallest nonzero value of its format under the smallest
// scale of a block. Scales of 128-blocks must be powers of two. Of MXFP8, blocks of zeros do not
// count; of 128-blocks they count with their scale, 1.
int exponent_of_smallest_value(const ops::GemmOperand& operand);

}  // namespace telens
