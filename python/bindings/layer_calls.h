// The seven calls for layers that are not ours: self-instrumented code.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

void bind_layer_calls(pybind11::module_& module);

}  // namespace telens::python
