// Sums of equal keys, merged over the ranks of a group.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/engine/statistics_totals.h"

namespace c10d {
class ProcessGroup;
}

namespace telens::features {

struct SharedSums {
  std::uint64_t key;  // a hash of tensor and SumsKey: unique among a rank's sums
  AnySums* sums;      // this rank's; replaced by the group's
};

// Takes what this rank has: it brings nothing to the group, and gets the group's all the same.
void bring_nothing(AnySums& sums);

// One gather of headers (hash of the keys, sizes), behind which keys and sums travel where those of
// all ranks have the room that the longest of the last 8 exchanges of the group took; else one more
// of the packed sums, with the keys in front if the hashes differ. So ranks may bring different
// sums, or none, and every rank of the group has to call this. Merges in the order of ranks: all
// ranks get the same bits. A note of as many words from every rank travels in the header; returns
// every rank's.
using Notes = std::vector<std::int64_t>;
std::vector<Notes> merge_over_ranks(std::span<const SharedSums> own, c10d::ProcessGroup& group,
                                    const Notes& note = {});

// The same on every machine.
std::int64_t compute_hash(std::string_view text);

}  // namespace telens::features
