// Casts in blocks that what-if statistics support.
#pragma once

#include <vector>

#include "core/ops/statistics.h"

namespace telens::testing {

// The casts of every device.
inline std::vector<ops::WhatIfCast> all_what_if_casts() {
  std::vector<ops::WhatIfCast> casts;
  for (const bool columnwise : {false, true}) {
    for (const FormatId format : {FormatId::e4m3, FormatId::e5m2}) {
      for (const ScalingMode mode : {ScalingMode::block_1d, ScalingMode::block_2d}) {
        casts.push_back({format, mode, false, columnwise});
      }
      for (const bool squares : {false, true}) {
        casts.push_back({format, ScalingMode::mxfp8, squares, columnwise});
      }
    }
    for (const bool squares : {false, true}) {
      casts.push_back({FormatId::e2m1, ScalingMode::nvfp4, squares, columnwise});
    }
  }
  return casts;
}

// Returns the casts that the CPU supports: all_what_if_casts() and MXFP6.
inline std::vector<ops::WhatIfCast> cpu_what_if_casts() {
  std::vector<ops::WhatIfCast> casts = all_what_if_casts();
  for (const bool columnwise : {false, true}) {
    for (const bool squares : {false, true}) {
      casts.push_back({FormatId::e3m2, ScalingMode::mxfp6_e3m2, squares, columnwise});
      casts.push_back({FormatId::e2m3, ScalingMode::mxfp6_e2m3, squares, columnwise});
    }
  }
  return casts;
}

}  // namespace telens::testing
