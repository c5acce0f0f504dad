// The exceptions of TELens as Python sees them, and the exceptions of Python as TELens sees them.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "core/base/error.h"

namespace telens::python {

// Sets the Python error for an exception of TELens; rethrows any other exception. The GIL is held.
void translate_error(std::exception_ptr thrown);

// Sets the Python error for the C++ exception that is being handled; for functions that Python
// calls without pybind11 in between. To be called in a catch block, with the GIL held.
void set_python_error() noexcept;

// The type telens.ConfigError.
pybind11::handle config_error();

// ---- Python exceptions that a guard around foreign code must not swallow

// Calls foreign code. A Python exception that does not derive from Exception (KeyboardInterrupt,
// SystemExit) is rethrown as an Interruption with the original nested in it. Requires the GIL.
template <typename Call>
auto letting_interruptions_pass(const Call& call) {
  try {
    return call();
  } catch (const pybind11::error_already_set& error) {
    if (error.matches(PyExc_Exception)) throw;
    std::throw_with_nested(Interruption());
  }
}

}  // namespace telens::python
