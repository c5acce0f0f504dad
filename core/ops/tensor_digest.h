// A digest of a tensor's bits, to compare tensors that must be the same on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/base/error.h"

namespace telens::ops {

// Any dtype and shape -> int64 [2], on the tensor's device, without waiting for it. The digest
// covers the dtype, the sizes, and the bits and place of each element: 0 and -0 differ, a NaN
// equals itself. It is the same for any strides and on all machines with the same byte order, and
// does not depend on the order of additions, because it sums integers. Two different tensors have
// the same digest with a probability below 2^-60: multilinear hashing by fixed multipliers (Carter
// and Wegman, 1979), first within rows of elements, then over rows.
TELENS_EXPORT at::Tensor compute_digest(const at::Tensor& x);

}  // namespace telens::ops
