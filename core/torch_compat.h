// Converts between LibTorch's types and the handles of core/base/tensor_handle.h. Code that uses
// handles does not depend on the framework's tensor type; only this file and its source use
// at::Tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <span>
#include <vector>

#include "core/base/tensor_handle.h"

namespace telens {

// Returns the tensor that the handle was made from, or a view of its memory that keeps the handle
// alive. Returns an undefined tensor for an undefined handle.
TELENS_EXPORT at::Tensor to_torch(const TensorHandle& handle);
TELENS_EXPORT std::vector<at::Tensor> to_torch(std::span<const TensorHandle> handles);

inline at::ScalarType to_torch(DType dtype) { return static_cast<at::ScalarType>(dtype); }
inline at::Device to_torch(DeviceId device) {
  return {static_cast<c10::DeviceType>(device.type), device.index};
}
inline c10::Stream to_torch(const StreamHandle& stream) {
  return c10::Stream::unpack3(stream.id, stream.device.index,
                              static_cast<c10::DeviceType>(stream.device.type));
}

TELENS_EXPORT std::vector<TensorHandle> to_handles(const std::vector<at::Tensor>& tensors);

inline DType to_handle(at::ScalarType dtype) { return static_cast<DType>(dtype); }
inline DeviceId to_handle(const at::Device& device) {
  return {static_cast<std::int8_t>(device.type()), device.index()};
}
inline StreamHandle to_handle(const c10::Stream& stream) {
  return {to_handle(stream.device()), static_cast<std::int64_t>(stream.id())};
}

}  // namespace telens
