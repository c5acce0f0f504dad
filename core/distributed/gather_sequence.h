// A gather along the sequence that autograd follows.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/distributed/process_group.h"

namespace telens {

// [s, ...] on each rank -> [ranks * s, ...]. Its gradient is the sum of all ranks', of which each
// gets its own rows.
at::Tensor gather_sequence(const at::Tensor& x, const ProcessGroupPtr& group);

}  // namespace telens
