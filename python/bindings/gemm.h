// What is told of products.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

void bind_gemm(pybind11::module_& module);

}  // namespace telens::python
