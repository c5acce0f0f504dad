// Sums of equal names, merged over the ranks of a group.
#pragma once

#include <span>
#include <string>

#include "features/statistics_totals.h"

namespace c10d {
class ProcessGroup;
}

namespace telens::features {

struct SharedSums {
  std::string name;  // of tensor and sums: unique among a rank's
  AnySums* sums;     // this rank's; replaced by the group's
};

// One gather of a fixed-size header (hash of the names, sizes); where any rank has anything, one
// more of the packed sums, with the names in front if the hashes differ. So ranks may bring
// different sums, or none, and every rank of the group has to call this. Merges in the order of
// ranks: all ranks get the same bits.
void merge_over_ranks(std::span<const SharedSums> own, c10d::ProcessGroup& group);

}  // namespace telens::features
