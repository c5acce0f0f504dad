// Seeds of samples: the same numbers on every machine and in every version, independent of torch's
// random numbers.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/fnv1a.h"

namespace telens::features {

// Returns the seed of a sample for a layer and an iteration; `place` distinguishes the samples of a
// layer and is below 8.
inline std::uint64_t sample_seed(std::string_view layer, std::int64_t iteration,
                                 std::uint64_t place) {
  return fnv1a(layer) + (static_cast<std::uint64_t>(iteration) << 3) + place;
}

}  // namespace telens::features
