// The activation functions of the form f(x) = x * s(a x + b x^3), s the sigmoid, as every backend
// computes them.
#pragma once

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

}  // namespace telens::ops
