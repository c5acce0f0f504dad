// Parameters for the memory of a look-back buffer, whose rows and operands (kWriteLast, kOperands)
// are written if a feature fires.
#pragma once

#include <cstdint>
#include <string_view>

namespace telens::config {

// The limit in MiB, which applies to rows and to operands separately.
inline constexpr std::string_view kMostMebibytes = "max_mebibytes";
inline constexpr std::int64_t kMostMebibytesByDefault = 64;

}  // namespace telens::config
