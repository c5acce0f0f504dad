// Helpers that use LibTorch's internals: tensors that outlive the mode in which they are created,
// cheap transposes and version counters.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>

namespace telens::ops {

// For tensors that a process keeps. During its lifetime, new tensors are plain tensors with values,
// in any mode of this thread: FakeTensorMode, a functional transform, inference.
class PlainTensors {
 private:
  c10::InferenceMode normal_{false};
  c10::impl::ExcludeDispatchKeyGuard no_modes_{c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::PreDispatch,
       c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize})};
};

// Transposes a 2-D matrix for a GEMM at a tenth of the cost of t(), which passes through the
// dispatcher three times. In a tiny layer, that is noticeable. Returns a view of the same storage
// that autograd does not track.
inline at::Tensor transposed_view(const at::Tensor& matrix) {
  if (matrix.key_set().has(c10::DispatchKey::Python)) return matrix.t();  // a Python subclass
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(matrix.storage()), matrix.key_set(), matrix.dtype());
  c10::TensorImpl* const impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(matrix.storage_offset());
  const std::int64_t sizes[] = {matrix.size(1), matrix.size(0)};
  const std::int64_t strides[] = {matrix.stride(1), matrix.stride(0)};
  impl->set_sizes_and_strides(at::IntArrayRef(sizes), at::IntArrayRef(strides));
  return view;
}

}  // namespace telens::ops

namespace telens {

// Returns the tensor's counter of in-place changes, which autograd uses to detect them. Returns 0
// for inference tensors, which do not count changes and are not needed in a backward.
inline std::uint32_t get_version(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<std::uint32_t>(tensor._version());
}

// Counts a change made below autograd, where operators do not update the counter.
inline void bump_version(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace telens
