// An operand that may be absent, looked into.
#pragma once

#include <variant>

#include "core/quantization/quantized_tensor.h"

namespace telens {

// nullptr where there is no operand, or a plain one.
inline const QuantizedTensor* quantized_or_null(const Operand* operand) {
  return std::get_if<QuantizedTensor>(operand);
}

// In high precision, as a matrix.
inline at::Tensor plain_values(const Operand& operand) {
  const QuantizedTensor* quantized = quantized_or_null(&operand);
  if (quantized == nullptr) return std::get<at::Tensor>(operand);
  return quantized->dequantize().reshape({-1, quantized->sizes.back()});
}

}  // namespace telens
