// A Python object that C++ threads without the GIL may copy and let go of.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "python/bindings/gil.h"

namespace telens::python {

using GilObject = std::shared_ptr<const pybind11::object>;

// GIL held. The last owner takes the GIL to let go; after the interpreter's end it does nothing.
inline GilObject share(pybind11::object object) {
  return {new pybind11::object(std::move(object)), [](const pybind11::object* owned) {
            if (Py_IsInitialized() != 0) {
              const WithGil gil;
              delete owned;
            }
          }};
}

}  // namespace telens::python
