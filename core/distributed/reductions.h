// The reduction of amaxes over the ranks of a group, and its announcement to these ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/distributed/process_group.h"

namespace telens {

// The maximum of amaxes over the ranks of a group, in one collective per group for any number of
// layers.
class AmaxReduction {
 public:
  // amax: FP32, 1-D, replaced by the maximum over the group in run(). Every rank of the group adds
  // tensors of the same sizes in the same order.
  void add(at::Tensor amax, const ProcessGroupPtr& group);

  // Packs, reduces and unpacks, group by group. A NaN on any rank becomes infinity: like any
  // non-finite amax it keeps the scale unchanged.
  void run();

 private:
  struct Group {
    ProcessGroupPtr group;
    std::vector<at::Tensor> amaxes;
  };
  std::vector<Group> groups_;
};

// Ranks publish the reduction that they are about to run, so that a mismatch is reported instead of
// hanging silently.
//
// Uses the group's store, once per text: in all other steps the cost is a string lookup.
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
