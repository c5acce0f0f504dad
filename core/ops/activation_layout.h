// The activation functions, for kernels of every device. No LibTorch.
#pragma once

#include <cstdint>

namespace telens::ops {

// sigmoid(z) = 1 / (1 + exp(-z)).
enum class ActivationFunction : std::uint8_t {
  gelu,   // x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3): the tanh approximation
  qgelu,  // x * sigmoid(1.702 x)
  relu,   // max(x, 0)
  srelu,  // max(x, 0)^2
  silu,   // x * sigmoid(x)
};

}  // namespace telens::ops
