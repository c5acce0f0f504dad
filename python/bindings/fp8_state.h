// Python access to the present FP8 state of a module's layers.
#pragma once

#include <pybind11/pybind11.h>

#include "python/bindings/module_adapter.h"

namespace telens::python {

using AdapterClass = pybind11::class_<ModuleAdapter, std::shared_ptr<ModuleAdapter>>;

void bind_fp8_state(AdapterClass& adapter);

}  // namespace telens::python
