// The C++ QuantizedTensor (codes and scales) and its Python wrapper, a torch.Tensor subclass whose
// dtype is the high-precision one: telens.pytorch.tensor.QuantizedTensor.
#pragma once

#include <pybind11/pybind11.h>

#include "core/quantization/quantized_tensor.h"

namespace telens::python {

// The wrapper of fresh codes and scales.
pybind11::object wrap_quantized(const QuantizedTensor& quantized);

// Returns the differentiable Python wrapper of a tensor with codes, or the tensor itself if it has
// none. Requires the GIL.
at::Tensor wrap_carried(const at::Tensor& tensor);

// True if the object is a wrapper; unwrap_quantized then returns its tensor, to be changed in
// place as well.
bool is_wrapped_quantized(PyObject* object);
QuantizedTensor& unwrap_quantized(PyObject* object);

// A plain tensor, or a wrapper.
pybind11::object from_operand(const Operand& operand);
Operand to_operand(const pybind11::object& object);

}  // namespace telens::python
