// The check of an option that is a probability.
#pragma once

#include "core/base/error.h"

namespace telens {

// Throws UsageError for a number outside of [0, 1], NaN too.
inline void check_probability(const char* module, const char* option, double value) {
  if (!(value >= 0 && value <= 1)) {
    raise<UsageError>("{}: {} is {}; expected a probability, from 0 to 1", module, option, value);
  }
}

}  // namespace telens
