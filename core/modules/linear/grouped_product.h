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

}  // namespace telens
