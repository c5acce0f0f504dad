// The quantizers in Python, under Transformer Engine's names.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "core/quantization/quantizer.h"

namespace telens::python {

// A quantizer that C++ goes on owning, as a Python object of its class: a copy, which shares scale
// and amax and makes both orientations, since the layer's own usage is that of its last cast. None
// for nullptr.
pybind11::object from_quantizer(const Quantizer* quantizer);

// A layer's quantizer itself; of a class written in Python, the object of that class.
pybind11::object own_quantizer(const std::shared_ptr<Quantizer>& quantizer);

}  // namespace telens::python
