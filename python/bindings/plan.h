// What a configuration does to layers, without a session.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

void bind_plan(pybind11::module_& parent);

}  // namespace telens::python
