// The activation functions of the form f(x) = x * s(a x + b x^3), s the sigmoid, as every backend
// computes them.
#pragma once

#include "core/ops/activation_layout.h"

namespace telens::ops {

// Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016): 2 sqrt(2/pi) (x + 0.044715 x^3).
struct GeluCoefficients {
  static constexpr float kLinear = 1.5957691216057308F;
  static constexpr float kCubic = kLinear * 0.044715F;
};

// The same paper's sigmoid approximation.
struct QuickGeluCoefficients {
  static constexpr float kLinear = 1.702F;
  static constexpr float kCubic = 0;
};

struct SiluCoefficients {
  static constexpr float kLinear = 1;
  static constexpr float kCubic = 0;
};

// f' = s + x * s * (1 - s) * (a + 3 b x^2). Far out s * (1 - s) is 0 (with a = 1 from |x| = 104
// on); its factor must not be Inf there, so x^2 counts as no more than this.
inline constexpr float kLargestSquare = 1e6F;

// Calls visitor.operator()<Function>() with what a backend computes the function by: its
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
