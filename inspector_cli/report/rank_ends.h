// How the recordings of a run's ranks ended that did not end well: what ended first, then what died
// of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "features/record/run_reader.h"

namespace telens::cli {

// The cause of an end, as far as the file tells.
enum class EndKind : std::uint8_t {
  error,       // an exception of the rank's own
  unknown,     // a file that was not closed, an interrupt: the machine, a person or a launcher
  by_another,  // an error of a collective, a signal of the launcher: another rank's end brings it
               // about, where there is one
  recording,   // the file alone ended, as on a full disk, and the process went on
};

// The last file of a rank, without a clean end.
struct RankEnd {
  const record::Segment* segment = nullptr;  // the reader's
  EndKind kind = EndKind::unknown;
  double time = 0;                                 // seconds since 1970; of a file that was not
                                                   // closed: when it was written last
  std::optional<std::int64_t> terminated_in = {};  // the iteration in which SIGTERM came
};

// First what came before every error of a rank's own, then those errors, then what may follow from
// them, then recordings that broke off; each part in the order of time. The reader lives longer.
std::vector<RankEnd> list_rank_ends(const record::RunReader& run);

// For each of them a sentence without a period, which says where another rank's end is the likely
// cause, or which came first: "the recording of rank 0: ended by an exception ...".
std::vector<std::string> describe(const std::vector<RankEnd>& ends, const record::RunReader& run);

}  // namespace telens::cli
