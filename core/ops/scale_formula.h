// The scale formulas, for every device. No LibTorch.
#pragma once

#include <cmath>
#include <limits>

#include "core/formats/host_device.h"

namespace telens {

// Returns the power of two at or below a positive finite x: 2^floor(log2(x)).
TELENS_HOST_DEVICE inline float power_of_two_below(float x) {
  int exponent = 0;
  std::frexp(x, &exponent);  // x = m * 2^exponent with 1/2 <= m < 1
  return std::ldexp(1.0F, exponent - 1);
}

// Current scaling, as in Transformer Engine's compute_scale_from_amax. `largest` replaces an
// infinite scale.
TELENS_HOST_DEVICE inline float current_scale(float amax, float fp8_max, float epsilon,
                                              bool power_of_two,
                                              float largest = std::numeric_limits<float>::max()) {
  if (amax < epsilon) {
    amax = epsilon;
  }
  if (!std::isfinite(amax) || amax == 0.0F) {
    return 1.0F;
  }
  const float quotient = fp8_max / amax;
  const float scale = std::isinf(quotient) ? largest : quotient;
  return power_of_two ? power_of_two_below(scale) : scale;
}

// Delayed scaling: returns the successor of `old_scale`.
TELENS_HOST_DEVICE inline float delayed_scale(float amax, float old_scale, float fp8_max,
                                              int margin, bool power_of_two) {
  if (!std::isfinite(amax) || !(amax > 0.0F)) {
    return old_scale;
  }
  float scale = fp8_max / amax;
  if (std::isinf(scale)) {
    scale = std::numeric_limits<float>::max();
  }
  if (power_of_two) {
    scale = power_of_two_below(scale);
  }
  scale = std::ldexp(scale, -margin);
  return std::isinf(scale) ? std::numeric_limits<float>::max() : scale;
}

}  // namespace telens
