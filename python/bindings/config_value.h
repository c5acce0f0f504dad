// Values of a debug configuration to and from Python.
#pragma once

#include <pybind11/pybind11.h>

#include "hooks/config/value.h"

namespace telens::python {

// None, bool, int, float, str, list and dict.
pybind11::object to_python(const config::Value& value);
// Raises TypeError for anything else, and for keys that are not strings.
config::Value to_config_value(pybind11::handle object);

}  // namespace telens::python
