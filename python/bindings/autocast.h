// Recipes, fp8_autocast and recomputation in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

void bind_recipes(pybind11::module_& module);
void bind_autocast(pybind11::module_& module);

}  // namespace telens::python
