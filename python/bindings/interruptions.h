// Exceptions of Python that no guard around foreign code may keep.
#pragma once

#include <pybind11/pybind11.h>

#include <exception>

#include "core/base/error.h"

namespace telens::python {

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
