// Words that a reader looks for in the text of an event, whose row has no column for them. The
// writer shares them, and files keep them: changed, they are not found in older ones.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace telens::record {

// Ends the text of "ranks_not_compared"; the cause stands before it.
inline constexpr std::string_view kComparedNoMore =
    "; this rank goes on recording and is compared with no other any more";

// In the text of "budget": how many of their iterations features run in.
inline constexpr std::string_view kAllIterations = "all";  // nothing is left out any more
inline std::string run_in_words(std::string_view how_many) {
  return fmt::format(" run in {} of their iterations", how_many);
}

// In the text of the "warning" of ranks that began without others, behind the names of these.
inline constexpr std::string_view kHadNotCome = " had not called it after ";

// Begins the text of the "warning" of ranks with unlike configurations.
inline constexpr std::string_view kUnlikeConfigurations = "the ranks have different configurations";

}  // namespace telens::record
