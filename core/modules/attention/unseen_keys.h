// The score of a key that a query does not see is -Inf, and so is the logarithm of the softmax's
// sum of a query that sees none.
#pragma once

#include <ATen/TensorOperators.h>

#include <limits>

namespace telens {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();

inline at::Tensor seen_or(const at::Tensor& x, double instead) {
  return x.masked_fill(x == kUnseen, instead);
}

}  // namespace telens
