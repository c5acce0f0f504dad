// The sums of a collective's input or output tensor, on the host.
#pragma once

#include <cstdint>

#include "core/base/tensor_handle.h"
#include "core/ops/collective_sums_layout.h"

namespace telens::features {

// on_host: from tensor_ops::collective_sums.
CollectiveSums read_sums(const TensorHandle& on_host);

// Returns the bound on the error of a sum of `ranks` numbers of this dtype, added in any order, if
// their magnitudes add up to `magnitude`: gamma_n = n u / (1 - n u), Higham, "Accuracy and
// Stability of Numerical Algorithms" (2002), 4.2. Infinite if the formula gives no bound.
double summation_bound(DType dtype, std::int64_t ranks, double magnitude);

}  // namespace telens::features
