// Converts tensors and dtypes between Python and at::Tensor of core/stable_abi/tensor.h. Replaces
// torch/csrc/utils/pybind.h, which uses symbols that change with each torch version.
//
// Tensors cross through torch._C._aoti, the functions with which PyTorch's compiled models exchange
// tensors with Python.
#pragma once

#include <pybind11/pybind11.h>

#include "core/stable_abi/tensor.h"

namespace telens::python {

// True for instances of torch.Tensor and its subclasses.
bool is_tensor(pybind11::handle object);
// Requires is_tensor(object).
at::Tensor to_tensor(pybind11::handle object);
// Returns the Python object of the same tensor; None for an undefined tensor.
pybind11::object from_tensor(const at::Tensor& tensor);

// True for instances of torch.dtype that the stable ABI knows.
bool is_dtype(pybind11::handle object);
at::ScalarType to_dtype(pybind11::handle object);
pybind11::object from_dtype(at::ScalarType dtype);

}  // namespace telens::python

namespace pybind11::detail {

template <>
struct type_caster<at::Tensor> {
  PYBIND11_TYPE_CASTER(at::Tensor, const_name("torch.Tensor"));

  bool load(handle source, bool) {
    if (!telens::python::is_tensor(source)) return false;
    value = telens::python::to_tensor(source);
    return true;
  }
  static handle cast(const at::Tensor& tensor, return_value_policy, handle) {
    return telens::python::from_tensor(tensor).release();
  }
};

template <>
struct type_caster<at::ScalarType> {
  PYBIND11_TYPE_CASTER(at::ScalarType, const_name("torch.dtype"));

  bool load(handle source, bool) {
    if (!telens::python::is_dtype(source)) return false;
    value = telens::python::to_dtype(source);
    return true;
  }
  static handle cast(at::ScalarType dtype, return_value_policy, handle) {
    return telens::python::from_dtype(dtype).release();
  }
};

}  // namespace pybind11::detail

// ---- LibTorch's functions of these names

inline bool THPVariable_Check(PyObject* object) { return telens::python::is_tensor(object); }
// True for torch.Tensor and torch.nn.Parameter, and false for other subclasses.
bool THPVariable_CheckExact(PyObject* object);
inline at::Tensor THPVariable_Unpack(PyObject* object) { return telens::python::to_tensor(object); }
