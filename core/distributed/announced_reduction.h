// The ranks of a group tell each other what they are about to reduce, so that one whose reduction
// another does not come to learns why.
//
// It goes by the group's store, beside its collectives, once for each text: in all other steps it
// costs the search for a string.
#pragma once

#include <string>

#include "core/distributed/process_group.h"

namespace telens {

struct ReductionNote {
  const char* subject;     // begins each message: "autocast"
  const char* group_name;  // the argument's, "fp8_group"
  std::string text;        // "DelayedScaling with 12 amaxes"; equal on ranks that fit together
  bool reduces = true;     // false: this rank reduces nothing, and waits for none
  const char* mend;        // "give all ranks of the group one recipe"
};

// Every rank of the group calls it before it reduces, or would if it did. One that reduces waits
// until all have said the same, or some are late (find_longest_wait). A warning tells of ranks that
// have said another thing for 10 s, and UsageError is thrown where they still do in the end. Where
// the store fails it returns: so will the reduction.
void announce_reduction(const ReductionNote& note, const ProcessGroupPtr& group);

}  // namespace telens
