// A digest of a tensor's bits, for ranks that have to have the same tensor.
#pragma once

#include <ATen/core/Tensor.h>

namespace telens::features {

// Any dtype and shape -> int64 [2], on the tensor's device, without a wait for it. Dtype and sizes
// count, and elements by bits and place: 0 and -0 differ, a NaN equals itself. The same for any
// strides and on all machines of one byte order; sums of integers, so no order of additions shows.
// Two tensors that differ have the same digest with a chance of less than 2^-60: multilinear
// hashing by fixed multipliers (Carter and Wegman, 1979), a row of elements first, then rows.
at::Tensor compute_digest(const at::Tensor& x);

}  // namespace telens::features
