// What a feature that fires says of the memory for what it writes of the past (kWriteLast,
// kOperands).
#pragma once

#include <cstdint>
#include <string_view>

namespace telens::config {

// A parameter, in MiB; for each of the two.
inline constexpr std::string_view kMostMebibytes = "max_mebibytes";
inline constexpr std::int64_t kMostMebibytesByDefault = 64;

}  // namespace telens::config
