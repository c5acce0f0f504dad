// Feature classes written in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

void bind_features(pybind11::module_& module);

}  // namespace telens::python
