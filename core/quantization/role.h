// The quantizer of a layer that serves an input of its GEMMs.
#pragma once

#include "core/base/names.h"
#include "core/quantization/recipe.h"

namespace telens {

// input: activation, weight or gradient.
constexpr TensorRole get_role(TensorName input) {
  switch (input) {
    case TensorName::activation:
      return TensorRole::input;
    case TensorName::weight:
      return TensorRole::weight;
    default:
      return TensorRole::grad_output;
  }
}

}  // namespace telens
