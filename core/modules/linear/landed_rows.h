// Writes results into buffers of the caller: a GroupedLinear's `out` and `dgrad_out`.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace telens {

// Returns the buffer as a tensor to write and return: it shares the buffer's memory and version
// counter, and autograd can record it. Counts the write.
at::Tensor output_view(const at::Tensor& buffer);

// Concatenates the parts' rows into the buffer. Differentiable.
at::Tensor join_into(const std::vector<at::Tensor>& parts, const at::Tensor& buffer);

// Returns the tensor; its backward writes the gradient into the buffer.
at::Tensor with_landed_gradient(const at::Tensor& tensor, const at::Tensor& buffer);

}  // namespace telens
