#include "core/modules/attention/context_parallel.h"

namespace telens {
namespace {

ContextRank place_in(const ProcessGroupPtr& group) {
  return group ? ContextRank{.rank = rank_in(*group), .size = size_of(*group)} : ContextRank();
}

ProcessGroupPtr of_several(const ProcessGroupPtr& group) {
  return group && size_of(*group) > 1 ? group : nullptr;
}

}  // namespace

ContextRank ContextParallel::place() const {
  const ContextRank inner = place_in(heads);
  const ContextRank outer = place_in(sequence);
  return {.rank = inner.size * outer.rank + inner.rank, .size = inner.size * outer.size};
}

ContextRank ContextParallel::sequence_place() const { return place_in(sequence); }

ContextParallel context_parallel(const std::vector<ProcessGroupPtr>& groups,
                                 const std::string& comm_type) {
  const bool both = comm_type == "a2a+p2p";
  if (!both && comm_type != "p2p" && comm_type != "all_gather" && comm_type != "a2a") {
    raise<UsageError>("cp_comm_type '{}' is unknown; expected p2p, all_gather, a2a or a2a+p2p",
                      comm_type);
  }
  if (groups.empty()) return {};
  if (groups.size() != (both ? 2U : 1U)) {
    raise<UsageError>("cp_group has {} groups; cp_comm_type {} takes {}", groups.size(), comm_type,
                      both ? "a list of two groups, for a2a and for p2p" : "one");
  }
  for (const ProcessGroupPtr& group : groups) {
    if (!group) raise<UsageError>("cp_group is a list with None in it; expected process groups");
  }
  const ProcessGroupPtr first = of_several(groups.front());
  if (both) return {.heads = first, .sequence = of_several(groups.back())};
  if (comm_type == "a2a") return {.heads = first, .sequence = nullptr};
  return {.heads = nullptr, .sequence = first, .gathers = comm_type == "all_gather"};
}

}  // namespace telens
