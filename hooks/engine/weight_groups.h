// The tensor-parallel groups that statistics of weights are reduced over.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "hooks/reductions.h"

namespace telens::features {

// Groups by the name that all of their ranks know them by.
using Groups = std::map<std::string, debug::ReductionGroup>;

// A rank gets to know a group from a layer that runs, and the other ranks' layers may not run in
// that iteration. A rank that went to the group alone would wait for ever: so all ranks tell each
// other what they know, and go where all ranks of a group go. A note of what a rank knows travels
// in a header that is exchanged anyway; the names follow where any note is another than before.
class WeightGroups {
 public:
  // Adds the group of a weight that was seen. Any thread.
  void add(const debug::ReductionGroup& group);

  // The note on the groups that this rank knows. Where weights stay the rank's own (`shares` false)
  // it tells of none, so that none of its groups is one that all of their ranks know.
  std::int64_t note(bool shares = true);

  // The groups that all of their ranks know. `notes`: of all ranks of the world, every one of which
  // has to call this with them. A rank that hears of a group of its own looks it up in the
  // process's registry of groups, where torch.distributed enters them.
  const Groups& agree(std::vector<std::int64_t> notes, c10d::ProcessGroup& world);

 private:
  Groups complete_groups(std::span<const std::string> told);
  void look_up(std::span<const std::string> told);

  std::mutex mutex_;  // over known_
  Groups known_;
  bool shares_ = true;               // as of the last note()
  std::string told_;                 // the message about known_, as of the last note()
  std::vector<std::int64_t> notes_;  // the notes from which agreed_ was made
  Groups agreed_;
};

}  // namespace telens::features
