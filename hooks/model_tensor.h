// Tensors of a model that layers do not pass to their features: the program shows them.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/tensor_handle.h"

namespace telens {

struct ModelTensor {
  enum class Kind : std::uint8_t {
    weight,       // a parameter that is not a GEMM operand: norm weights, biases, embeddings
    gradient,     // any parameter's gradient, as the optimizer receives it
    amax_history  // [length], for a tensor under delayed scaling
  };

  Kind kind = Kind::weight;
  std::string module;  // module name that sections select by
  std::string layer;   // the layer's name in the run
  std::string tensor;  // a name of the contract: "weight", "wgrad", "activation", ...
  TensorHandle value;
  // Ranks with the same part of the whole tensor have the same value; "" if the part is the whole.
  // Any text that names the part identically on all ranks.
  std::string part = {};
};

}  // namespace telens
