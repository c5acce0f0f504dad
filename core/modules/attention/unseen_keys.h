// What the scores of a query are at keys that it does not see, and the logarithm of its softmax's
// sum where it sees none.
#pragma once

#include <ATen/TensorOperators.h>

#include <limits>

namespace telens {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();

inline at::Tensor seen_or(const at::Tensor& x, double instead) {
  return x.masked_fill(x == kUnseen, instead);
}

}  // namespace telens
