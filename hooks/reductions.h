// The process groups over which statistics are reduced.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooks/session_options.h"

namespace telens {

struct Reductions {
  using OfLayers = std::map<std::string, debug::ReductionGroup, std::less<>>;

  // The group that contains all ranks, which agree on the groups of weights; null if there is only
  // this rank.
  debug::ReductionGroup world = {};
  // The group of activations, gradients and outputs; null if they stay local to this rank.
  debug::ReductionGroup tensors = {};
  OfLayers tensors_of_layers = {};  // overrides `tensors` for these layers
  // If true, weights are reduced over the tensor-parallel group of their layer; if false, they stay
  // local to this rank.
  bool weights = false;
  // True if this step reduces, for `tensors` and for `weights`. The same on every rank.
  bool tensors_are_due = false;
  bool weights_are_due = false;
  // The decisions of this rank (hooks/decisions.h); the same number on every rank, and due on all
  // of them.
  std::vector<std::int64_t> decisions = {};
  bool decisions_are_due = false;
};

// Returns a group's readable name; "" for null and for a single-rank group, over which nothing is
// reduced.
std::string get_name(const debug::ReductionGroup& group);

// Returns the name under which all ranks of a group know it.
std::string get_id(const c10d::ProcessGroup& group);

bool has_several_ranks(const debug::ReductionGroup& group);

// Shares the ownership of a group with another owner; returns null for null.
debug::ReductionGroup share(c10d::ProcessGroup* group);

}  // namespace telens
