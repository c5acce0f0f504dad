// Memory for the past that a firing feature writes: what the feature's configuration says of it
// (kWriteLast, kOperands).
#pragma once

#include <cstdint>
#include <string_view>

namespace telens::config {

// A parameter, in MiB; for each of the two.
inline constexpr std::string_view kMostMebibytes = "max_mebibytes";
inline constexpr std::int64_t kMostMebibytesByDefault = 64;

}  // namespace telens::config
