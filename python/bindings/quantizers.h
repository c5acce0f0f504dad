// The quantizers in Python, under Transformer Engine's names.
#pragma once

#include <pybind11/pybind11.h>

#include "core/quantization/quantizer.h"

namespace telens::python {

// A quantizer that C++ goes on owning, as a Python object of its class: a copy, which shares scale
// and amax and makes both orientations, since the layer's own usage is that of its last cast. None
// for nullptr.
pybind11::object from_quantizer(const Quantizer* quantizer);

}  // namespace telens::python
