// Shares in percent.
#pragma once

#include <cstdint>

namespace telens {

// NaN if `whole` is 0.
inline double percent(std::int64_t part, std::int64_t whole) {
  return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace telens
