// Removes what killed processes leave behind: files under temporary names.
#pragma once

#include <string>
#include <string_view>

namespace telens::record {

// ".dump.<pid>.<number>.tmp"
inline constexpr std::string_view kDumpPrefix = ".dump.";
inline constexpr std::string_view kTemporarySuffix = ".tmp";
// ".<run file>.repair.<pid>.tmp"
inline constexpr std::string_view kRepairInfix = ".repair.";

// Those of a rank in a run's folder. For the process that has the rank's claim.
void remove_leftovers(const std::string& folder, int rank);

// Those of a rank's tensor dumps, which runs in one log_dir share: those of processes that this
// machine does not have, and that another one would have finished by now.
void remove_leftover_dumps(const std::string& log_dir, int rank);

}  // namespace telens::record
