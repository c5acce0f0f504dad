// A tensor's counter of in-place changes, which autograd uses to detect them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace telens {

// Inference tensors do not count changes, and backward does not need them: 0.
inline std::uint32_t get_version(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

// Counts a change made below autograd, where operators do not update the counter.
inline void bump_version(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace telens
