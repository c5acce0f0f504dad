// State that this process keeps for each process group until it exits.
#pragma once

#include <map>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace telens {

// Not thread-safe. Must outlive torch's statics: allocate with new, never delete.
template <typename State>
class StateByGroup {
 public:
  // Returns the state of the group; creates it if there is none.
  State& of(c10d::ProcessGroup& group) {
    const auto known = all_.find(&group);
    if (known != all_.end()) return known->second.state;
    const auto shared = c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&group);
    return all_.emplace(&group, Kept{c10::weak_intrusive_ptr<c10d::ProcessGroup>(shared)})
        .first->second.state;
  }

 private:
  struct Kept {
    // The weak reference prevents reuse of the address of a destroyed group.
    c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
    State state = {};
  };
  std::map<c10d::ProcessGroup*, Kept> all_;
};

}  // namespace telens
