// An operand that may be absent, looked into.
#pragma once

#include <variant>

#include "core/quantization/quantized_tensor.h"

namespace telens {

// nullptr where there is no operand, or a plain one.
inline const QuantizedTensor* quantized_or_null(const Operand* operand) {
  return std::get_if<QuantizedTensor>(operand);
}

}  // namespace telens
