// Comparing tensors bit for bit.
#pragma once

#include <ATen/ATen.h>

namespace telens::test {

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         a.contiguous().view(at::kByte).equal(b.contiguous().view(at::kByte));
}

}  // namespace telens::test
