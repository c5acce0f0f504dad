// Reading run files: what telens.open_run is made of.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

void bind_run_reader(pybind11::module_& module);

}  // namespace telens::python
