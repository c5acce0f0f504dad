// How a run and its ranks ended: which rank ended first, and which ends are likely its consequence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "record/run_reader.h"

namespace telens::analysis {

// Seconds by which the end of a cause may be recorded after the end of its consequence: clocks of
// machines differ by seconds, and a rank that loses another one may close its file first.
inline constexpr double kMostBefore = 10;

// The cause of a rank's end, as far as its file shows it.
enum class EndKind : std::uint8_t {
  error,       // an exception that the rank itself raised
  unknown,     // a file that was not closed, an interrupt: the machine, a person or a launcher
  by_another,  // an error of a collective or a signal of the launcher
  recording,   // only the recording ended, as on a full disk, and the process continued
};

// The last file of a rank, without a clean end.
struct RankEnd {
  const record::Segment* segment = nullptr;  // the reader's
  EndKind kind = EndKind::unknown;
  double time = 0;  // seconds since 1970; if the file was not closed: its last write
  std::optional<std::int64_t> terminated_in = {};  // the iteration in which SIGTERM came
};

// Returns true if the file was closed cleanly or is being written.
bool ended_well(const record::Segment& segment);

// Returns true if the file, whose lock is free, was not closed and changed in the last 5 minutes. A
// free lock does not prove the writer's end if the file system does not share locks between
// machines (NFS, Lustre), or if the file is a copy. Returns false if the writer ran under this
// machine's current boot, in a container or not, and the file is the original on a local disk; this
// requires a file system that records creation times.
bool may_be_written(const record::Segment& segment);

// Returns first the ends before every error that a rank itself raised, then these errors, then
// their likely consequences, then recordings that broke off; each part by time. The ends point into
// the reader.
std::vector<RankEnd> list_rank_ends(const record::RunReader& run);

// Returns the end in the list that likely caused the ends of kind `by_another`, or nullptr if there
// is none.
const RankEnd* find_origin(const std::vector<RankEnd>& ends);

// Returns the file of the rank that first ended cleanly; nullptr if there is none.
const record::Segment* find_first_clean(const record::RunReader& run);

// Returns true if an exception's text names a collective or its transport.
bool speaks_of_collectives(std::string_view reason);

enum class Ending : std::uint8_t {
  finished,
  still_being_written,
  recording_stopped,  // the program continued, and its end is not known
  exception,
  out_of_memory,
  killed,      // the file was not closed
  terminated,  // by SIGTERM or Ctrl-C
};

// "finished", "still_being_written", ...
std::string_view get_name(Ending ending);

// How a run ended.
// - It is still being written while any rank is being written.
// - It is also still being written while no rank recorded its end and a file may_be_written().
//   Originals from a machine with this name, under the current boot or without a boot id, are
//   excluded.
// - If several ranks of the newest world failed, this is the end of the rank that likely failed
//   first.
struct RunEnding {
  Ending ending = Ending::finished;
  std::optional<int> rank = {};                // if several ranks ran and the run failed
  std::optional<std::int64_t> iteration = {};  // the last recorded one; of SIGTERM: when it came
  double time = 0;                             // seconds since 1970; 0 if it has not ended
  std::string reason = {};                     // the exception, or why the recording stopped

  bool is_failure() const { return ending >= Ending::exception; }
};
RunEnding find_ending(const record::RunReader& run);

}  // namespace telens::analysis
