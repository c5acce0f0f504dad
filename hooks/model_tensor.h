// Tensors of a model that layers do not hand to their features: the program shows them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace telens {

struct ModelTensor {
  enum class Kind : std::uint8_t {
    weight,       // a parameter that no GEMM takes: norm weights, biases, embeddings
    gradient,     // any parameter's, as the optimizer gets it
    amax_history  // [length], of a tensor under delayed scaling
  };

  Kind kind = Kind::weight;
  std::string module;  // by which sections select it
  std::string layer;   // the layer's name in the run
  std::string tensor;  // a name of the contract: "weight", "wgrad", "activation", ...
  at::Tensor value;
  // Ranks that have the same part of the whole have the same tensor; "": all of it. Any words that
  // name the part alike on all ranks.
  std::string part = {};
};

}  // namespace telens
