// The activation functions, and how every backend computes those of the form
// f(x) = x * s(a x + b x^3), with s the sigmoid. For every device. No LibTorch.
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

// Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016): 2 sqrt(2/pi) (x + 0.044715 x^3).
struct GeluCoefficients {
  static constexpr float kLinear = 1.5957691216057308F;
  static constexpr float kCubic = kLinear * 0.044715F;
};

// The sigmoid approximation of the same paper.
struct QuickGeluCoefficients {
  static constexpr float kLinear = 1.702F;
  static constexpr float kCubic = 0;
};

struct SiluCoefficients {
  static constexpr float kLinear = 1;
  static constexpr float kCubic = 0;
};

// Upper bound for x^2 in f' = s + x * s * (1 - s) * (a + 3 b x^2). For large |x|, s * (1 - s) is 0
// (if a = 1, from |x| = 104 on), and its factor must not be Inf.
inline constexpr float kLargestSquare = 1e6F;

// Calls visitor.operator()<Function>() with the type by which a backend computes the function: its
// SigmoidWeighted<Coefficients>, Relu or SquaredRelu.
template <template <typename> typename SigmoidWeighted, typename Relu, typename SquaredRelu,
          typename Visitor>
decltype(auto) dispatch_activation(ActivationFunction function, Visitor&& visitor) {
  switch (function) {
    case ActivationFunction::gelu:
      return visitor.template operator()<SigmoidWeighted<GeluCoefficients>>();
    case ActivationFunction::qgelu:
      return visitor.template operator()<SigmoidWeighted<QuickGeluCoefficients>>();
    case ActivationFunction::relu:
      return visitor.template operator()<Relu>();
    case ActivationFunction::srelu:
      return visitor.template operator()<SquaredRelu>();
    case ActivationFunction::silu:
      break;
  }
  return visitor.template operator()<SigmoidWeighted<SiluCoefficients>>();
}

}  // namespace telens::ops
