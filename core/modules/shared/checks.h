// Checks of module options.
#pragma once

#include <cmath>

#include "core/base/error.h"

namespace telens {

// Throws UsageError unless the value is finite and at least 0: a norm takes the square root of a
// sum that contains it.
inline void check_epsilon(const char* module, const char* option, double value) {
  if (!(std::isfinite(value) && value >= 0)) {
    raise<UsageError>("{}: {} is {}; expected a finite number, 0 or above", module, option, value);
  }
}

// Throws UsageError unless the value is in [0, 1].
inline void check_probability(const char* module, const char* option, double value) {
  if (!(value >= 0 && value <= 1)) {
    raise<UsageError>("{}: {} is {}; expected a probability, from 0 to 1", module, option, value);
  }
}

}  // namespace telens
