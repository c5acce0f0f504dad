// The transpose of a matrix for a GEMM, at a tenth of what t() costs: that goes through the
// dispatcher three times, which a tiny layer would feel.
#pragma once

#include <ATen/core/Tensor.h>

namespace telens::ops {

// A view of the same storage that autograd does not follow. matrix is 2-D.
inline at::Tensor transposed_view(const at::Tensor& matrix) {
  if (matrix.key_set().has(c10::DispatchKey::Python)) return matrix.t();  // a subclass of Python's
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
