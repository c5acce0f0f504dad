// A differentiable all-to-all of rows.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/distributed/collectives.h"

namespace telens {

// x: [sum(sent), ...], ordered by receiving rank -> [sum(received), ...], ordered by sending rank,
// bit for bit. The gradient is the reverse exchange; differentiable any number of times. Every rank
// of the group calls it, also without rows.
at::Tensor exchange_rows(const at::Tensor& x, const RowCounts& counts,
                         const ProcessGroupPtr& group);

}  // namespace telens
