// Ranks publish the reduction that they are about to run, so that a mismatch is reported instead of
// hanging silently.
//
// Uses the group's store, once per text: in all other steps the cost is a string lookup.
#pragma once

#include <string>

#include "core/distributed/process_group.h"

namespace telens {

struct ReductionNote {
  const char* subject;     // prefix of the messages, "autocast"
  const char* group_name;  // the argument's name, "fp8_group"
  std::string text;        // "DelayedScaling with 12 amaxes"; equal on matching ranks
  bool reduces = true;     // false if this rank does not reduce; it does not wait then
  const char* hint;        // "give all ranks of the group one recipe"
};

// Call on every rank of the group, also on ranks that do not reduce. A rank that reduces waits
// until all ranks have published the same text, for at most 10 s and never longer than
// find_longest_wait(). After that, one rank warns about a rank with another text. Never throws: a
// late rank may still arrive, and the reduction has a timeout.
void announce_reduction(const ReductionNote& note, const ProcessGroupPtr& group);

}  // namespace telens
