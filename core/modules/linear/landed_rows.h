// Results in memory of the caller's: a GroupedLinear's `out` and `dgrad_out`.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace telens {

// The buffer as a tensor to be written and returned, which autograd may follow: it shares the
// buffer's memory and counter of versions. Counts the write.
at::Tensor output_view(const at::Tensor& buffer);

// The parts' rows, one part behind the other, written into the buffer. Differentiable.
at::Tensor join_into(const std::vector<at::Tensor>& parts, const at::Tensor& buffer);

// The tensor, whose gradient is written into the buffer on its way.
at::Tensor with_landed_gradient(const at::Tensor& tensor, const at::Tensor& buffer);

}  // namespace telens
