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
// until all have said the same, for 10 s at most and never longer than find_longest_wait; then one
// rank warns of another that has said another thing. It never throws: a rank that is late may still
// come, and the reduction has a time limit of its own.
void announce_reduction(const ReductionNote& note, const ProcessGroupPtr& group);

}  // namespace telens
