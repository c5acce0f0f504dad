// An all-to-all of rows that autograd follows.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/distributed/collectives.h"

namespace telens {

// x: [sum(sent), ...], first the rows for rank 0 -> [sum(received), ...], first those from rank 0,
// bit for bit. Its gradient is the exchange back, to any order. Every rank of the group calls it, a
// rank without rows too.
at::Tensor exchange_rows(const at::Tensor& x, const RowCounts& counts,
                         const ProcessGroupPtr& group);

}  // namespace telens
