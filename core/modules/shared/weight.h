// A module's parameter as its GEMMs take it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "core/quantization/quantized_tensor.h"

namespace telens {

// A parameter that may be stored in low precision. `parameter` is autograd's leaf, of the
// high-precision dtype and the weight's shape; where `quantized` is set, the values are there and
// `parameter` has no storage of its own to speak of.
struct Weight {
  at::Tensor parameter;
  std::optional<QuantizedTensor> quantized;
  std::vector<at::Tensor> parts = {};  // the leaves whose rows `parameter` joins; {}: it is one
  // The parts' values, where they are stored in low precision, each under scales of its own.
  std::vector<QuantizedTensor> stored_parts = {};

  bool defined() const { return parameter.defined(); }
};

}  // namespace telens
