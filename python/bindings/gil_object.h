// A Python object that C++ threads may copy and release without holding the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "python/bindings/gil.h"

namespace telens::python {

using GilObject = std::shared_ptr<const pybind11::object>;

// Requires the GIL. The last owner takes the GIL to release the object; after the interpreter has
// ended it does nothing.
inline GilObject share(pybind11::object object) {
  return {new pybind11::object(std::move(object)), [](const pybind11::object* owned) {
            if (Py_IsInitialized() != 0) {
              const WithGil gil;
              delete owned;
            }
          }};
}

}  // namespace telens::python
