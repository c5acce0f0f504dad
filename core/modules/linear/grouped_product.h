// The GEMMs of a GroupedLinear in high precision if no feature is due: one operation and one
// autograd function for all maps, with the same bits as separate maps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace telens {

struct GroupedProduct {
  at::Tensor input;                 // [sum(rows), in], in the computation's dtype
  std::vector<at::Tensor> weights;  // [out, in] each
  std::vector<at::Tensor> biases;   // empty, or [out] each
  std::vector<std::int64_t> rows;   // input rows per map
  at::Tensor out;                   // output buffer; may be undefined
  at::Tensor dgrad_out;             // buffer of the input's gradient; may be undefined
  std::string layer;                // for messages
};

// [sum(rows), out].
at::Tensor multiply_grouped(const GroupedProduct& product);

// ---- results in buffers of the caller: a GroupedLinear's `out` and `dgrad_out`

// Returns the buffer as a tensor to write and return: it shares the buffer's memory and version
// counter, and autograd can record it. Counts the write.
at::Tensor output_view(const at::Tensor& buffer);

// Concatenates the parts' rows into the buffer. Differentiable.
at::Tensor join_into(const std::vector<at::Tensor>& parts, const at::Tensor& buffer);

// Returns the tensor; its backward writes the gradient into the buffer.
at::Tensor with_landed_gradient(const at::Tensor& tensor, const at::Tensor& buffer);

}  // namespace telens
