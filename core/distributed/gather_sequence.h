// A differentiable gather along the sequence.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/distributed/process_group.h"

namespace telens {

// [s, ...] on each rank -> [ranks * s, ...]. The gradient is summed over ranks and scattered.
at::Tensor gather_sequence(const at::Tensor& x, const ProcessGroupPtr& group);

}  // namespace telens
