// The products of a GroupedLinear that nothing watches or casts: one operation and one function of
// autograd for all of its maps, with the bits that each map by itself has.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace telens {

struct GroupedProduct {
  at::Tensor input;                 // [sum(rows), in], of the dtype to compute in
  std::vector<at::Tensor> weights;  // [out, in] each
  std::vector<at::Tensor> biases;   // none, or [out] each
  std::vector<std::int64_t> rows;   // those of the input that each map takes
  at::Tensor out;                   // where the result is to be written; undefined: anywhere
  at::Tensor dgrad_out;             // the same for the gradient of the input
  std::string layer;                // for messages
};

// [sum(rows), out].
at::Tensor multiply_grouped(const GroupedProduct& product);

}  // namespace telens
