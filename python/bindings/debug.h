// The session API in Python: what telens.debug is made of.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

void bind_debug(pybind11::module_& module);

}  // namespace telens::python
