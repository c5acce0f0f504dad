// Tensors of another framework as views in LibTorch and back, over DLPack's table of C functions
// (https://dmlc.github.io/dlpack/latest/c_api.html, DLPackExchangeAPI): no copy and no capsule.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/dlpack.h>
#include <c10/core/StreamGuard.h>
#include <pybind11/pybind11.h>

#include <optional>

namespace telens::python {

// The GIL is held in every call.
class ForeignTensors {
 public:
  // tensor_class: the framework's class of tensors. Throws UsageError where it has no such table,
  // or one of another major version than LibTorch reads.
  explicit ForeignTensors(const pybind11::object& tensor_class);

  // The same memory. Shares ownership of it.
  at::Tensor view(pybind11::handle tensor) const;
  // The same memory, which must be contiguous, without its autograd graph.
  pybind11::object wrap(const at::Tensor& tensor) const;
  // True if `view` shows the tensor as it is now: memory, device, dtype and shape.
  bool is_view_of(const at::Tensor& view, pybind11::handle tensor) const;
  // Makes the framework's present stream LibTorch's while the guard lives; nothing on the CPU.
  std::optional<c10::StreamGuard> follow_stream(const at::Tensor& view) const;

 private:
  const DLPackExchangeAPI* table_ = nullptr;
};

}  // namespace telens::python
