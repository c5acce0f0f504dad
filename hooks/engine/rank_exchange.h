// Merges sums of equal keys over the ranks of a group, and finds the tensor-parallel groups over
// which statistics of weights are reduced.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/engine/statistics_totals.h"
#include "hooks/rank_group.h"

namespace telens::features {

struct SharedSums {
  std::uint64_t key;  // a hash of tensor and SumsKey: unique among a rank's sums
  AnySums* sums;      // this rank's; replaced by the group's
};

// Clears this rank's sums: it contributes nothing to the group, but still receives the group's
// sums.
void bring_nothing(AnySums& sums);

// Merges the sums of equal keys over the ranks of the group, in rank order, so that all ranks get
// the same bits. Ranks may contribute different sums or none; every rank has to call this.
//
// First the ranks gather headers (hash of the keys, sizes). Keys and sums follow in the same
// message if they fit into the size of the longest of the group's last 8 exchanges. Otherwise a
// second gather sends the packed sums, preceded by the keys if the hashes differ. The header also
// carries a note, with the same number of words on every rank. Returns every rank's note.
using Notes = std::vector<std::int64_t>;
std::vector<Notes> merge_over_ranks(std::span<const SharedSums> own, RankGroup& group,
                                    const Notes& note = {});

// Returns the same hash on every machine.
std::int64_t compute_hash(std::string_view text);

// Groups by name, which is the same on all of their ranks.
using Groups = std::map<std::string, RankGroupPtr>;

// The tensor-parallel groups over which statistics of weights are reduced.
//
// A rank learns of a group when a layer runs, and the layers of other ranks may not run in that
// iteration. A rank that gathers over the group while the others do not would wait forever. So all
// ranks exchange what they know, and use a group only if all of its ranks know it. A note on what a
// rank knows is sent in a header that is exchanged anyway; the names follow if any note has
// changed.
class WeightGroups {
 public:
  // Adds the group of an observed weight. Any thread.
  void add(const RankGroupPtr& group);

  // Returns the note on the groups that this rank knows. If weights stay local to the rank
  // (`shares` is false), it names none, so that no group of this rank is complete.
  std::int64_t note(bool shares = true);

  // Returns the groups that all of their ranks know. `notes`: of all ranks of the world; each of
  // them has to make this call. A rank that learns of a group that it belongs to looks it up
  // (RankGroup::find).
  const Groups& agree(std::vector<std::int64_t> notes, RankGroup& world);

 private:
  Groups complete_groups(std::span<const std::string> told);
  void look_up(std::span<const std::string> told, RankGroup& world);

  std::mutex mutex_;  // guards known_
  Groups known_;
  bool shares_ = true;               // as of the last note()
  std::string told_;                 // the message about known_, as of the last note()
  std::vector<std::int64_t> notes_;  // the notes from which agreed_ was made
  Groups agreed_;
};

}  // namespace telens::features
