// The check of an option that is added to a variance or to a sum of squares.
#pragma once

#include <cmath>

#include "core/base/error.h"

namespace telens {

// Throws UsageError for a number below 0, of which the norm's square root would make NaN, and for
// one that is not finite.
inline void check_epsilon(const char* module, const char* option, double value) {
  if (!(std::isfinite(value) && value >= 0)) {
    raise<UsageError>("{}: {} is {}; expected a finite number, 0 or above", module, option, value);
  }
}

}  // namespace telens
