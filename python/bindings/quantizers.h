// The quantizers in Python, under Transformer Engine's names.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "core/quantization/quantizer.h"

namespace telens::python {

// Wraps a copy of a quantizer that C++ keeps owning as a Python object of its class. The copy
// shares scale and amax. It computes both orientations, because the layer's own usage flags are
// left from its last cast. Returns None for nullptr.
pybind11::object from_quantizer(const Quantizer* quantizer);

// A layer's quantizer itself; of a class written in Python, the object of that class.
pybind11::object own_quantizer(const std::shared_ptr<Quantizer>& quantizer);

}  // namespace telens::python
