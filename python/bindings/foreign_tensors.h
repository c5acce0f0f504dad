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
  // tensor_class: the framework's tensor class. Throws UsageError if the class does not have such a
  // table, or if the table's major version differs from the one that LibTorch reads.
  explicit ForeignTensors(const pybind11::object& tensor_class);

  // Returns a view of the same memory and shares its ownership.
  at::Tensor view(pybind11::handle tensor) const;
  // Returns a view of the same memory, which must be contiguous, without the autograd graph.
  pybind11::object wrap(const at::Tensor& tensor) const;
  // Returns true if `view` matches the tensor's present memory, device, dtype and shape.
  bool is_view_of(const at::Tensor& view, pybind11::handle tensor) const;
  // Makes the framework's present stream LibTorch's while the guard lives; nothing on the CPU.
  std::optional<c10::StreamGuard> follow_stream(const at::Tensor& view) const;

 private:
  const DLPackExchangeAPI* table_ = nullptr;
};

}  // namespace telens::python
