// The extension module telens._C.
#include <pybind11/pybind11.h>

#include "python/bindings/errors.h"
#include "python/bindings/modules.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ side of TELens.";
  telens::python::bind_errors(module);
  telens::python::bind_modules(module);
}
