// The exceptions of TELens as Python sees them.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

// Sets the Python error for the C++ exception that is being handled; for functions that Python
// calls without pybind11 in between. To be called in a catch block, with the GIL held.
void set_python_error() noexcept;

// The type telens.ConfigError.
pybind11::handle config_error();

}  // namespace telens::python
