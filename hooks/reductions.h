// Over which process groups statistics are reduced.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "hooks/session_options.h"

namespace telens {

struct Reductions {
  using OfLayers = std::map<std::string, debug::ReductionGroup, std::less<>>;

  // The group of all ranks, which agree on the groups of weights; null: this rank is alone.
  debug::ReductionGroup world = {};
  // The group of activations, gradients and outputs; null: they stay this rank's.
  debug::ReductionGroup tensors = {};
  OfLayers tensors_of_layers = {};  // in place of that
  // Weights are reduced over the tensor-parallel group of their layer; false: they stay this
  // rank's.
  bool weights = false;
  // True if this is a step of reduction, for the one and for the other. The same on every rank.
  bool tensors_are_due = false;
  bool weights_are_due = false;
  // The decisions of this rank (hooks/decisions.h); equally many on every rank, and due on all of
  // them.
  std::vector<std::int64_t> decisions = {};
  bool decisions_are_due = false;
};

// The name of a group for people; "" for null and for a group of one rank, over which nothing is
// reduced.
std::string get_name(const debug::ReductionGroup& group);

// The name under which all ranks of a group know it.
std::string get_id(const c10d::ProcessGroup& group);

bool has_several_ranks(const debug::ReductionGroup& group);

// Shares the ownership of a group with another owner; null for null.
debug::ReductionGroup share(c10d::ProcessGroup* group);

}  // namespace telens
