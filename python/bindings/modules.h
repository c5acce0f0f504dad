// The modules of core/modules in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

void bind_modules(pybind11::module_& module);

}  // namespace telens::python
