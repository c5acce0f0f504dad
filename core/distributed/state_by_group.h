// State that this process keeps for each process group, as long as it runs.
#pragma once

#include <map>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace telens {

// Its user locks. It is to outlive torch's own statics: leak it.
template <typename State>
class StateByGroup {
 public:
  // That of the group, made where there is none.
  State& of(c10d::ProcessGroup& group) {
    const auto known = all_.find(&group);
    if (known != all_.end()) return known->second.state;
    const auto shared = c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(&group);
    return all_.emplace(&group, Kept{c10::weak_intrusive_ptr<c10d::ProcessGroup>(shared)})
        .first->second.state;
  }

 private:
  struct Kept {
    // A weak reference keeps the address of a group that is gone from being used again.
    c10::weak_intrusive_ptr<c10d::ProcessGroup> group;
    State state = {};
  };
  std::map<c10d::ProcessGroup*, Kept> all_;
};

}  // namespace telens
