// A process group in libtelens_observe.so, where c10d's classes are not available: a RankGroup that
// the Python module implements with torch.distributed.
#pragma once

#include "hooks/rank_group.h"

namespace c10d {

class ProcessGroup : public std::enable_shared_from_this<ProcessGroup> {
 public:
  explicit ProcessGroup(telens::RankGroupPtr ranks) : ranks_(std::move(ranks)) {}

  const telens::RankGroupPtr& ranks() const { return ranks_; }

 private:
  telens::RankGroupPtr ranks_;
};

}  // namespace c10d
