// Converts between LibTorch's types and the handles of core/base/tensor_handle.h. Code that uses
// handles does not depend on the framework's tensor type; only this file and its source use
// at::Tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <span>
#include <vector>

#include "core/base/tensor_handle.h"

namespace telens {

// Returns the tensor that the handle was created from, or a view of its memory that keeps the
// handle alive. Returns an undefined tensor for an undefined handle.
TELENS_EXPORT at::Tensor to_torch(const TensorHandle& handle);
inline std::vector<at::Tensor> to_torch(std::span<const TensorHandle> handles) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(handles.size());
  for (const TensorHandle& each : handles) tensors.push_back(to_torch(each));
  return tensors;
}

inline at::ScalarType to_torch(DType dtype) { return static_cast<at::ScalarType>(dtype); }
inline at::Device to_torch(DeviceId device) {
  return {static_cast<c10::DeviceType>(device.type), device.index};
}

inline std::vector<TensorHandle> to_handles(const std::vector<at::Tensor>& tensors) {
  return {tensors.begin(), tensors.end()};
}

inline DType to_handle(at::ScalarType dtype) { return static_cast<DType>(dtype); }
inline DeviceId to_handle(const at::Device& device) {
  return {static_cast<std::int8_t>(device.type()), device.index()};
}

}  // namespace telens
