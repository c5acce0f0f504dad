// The groups over which statistics are reduced: the groups that the program chose, else the world.
#pragma once

#include <atomic>
#include <mutex>
#include <string_view>

#include "hooks/rank_group.h"
#include "hooks/session_options.h"

namespace telens::debug {

// All calls are thread-safe, except begin().
class ReductionGroups {
 public:
  // Called once, before the other calls. Ranks that watch different things do not reduce anything.
  void begin(RankGroupPtr world, bool ranks_agree);

  // Returns all ranks, or null if there is only this rank.
  const RankGroupPtr& world() const { return world_; }

  // Chooses the group of a layer, or with an empty name the default group of the other layers. Null
  // restores the default.
  void choose(RankGroupPtr group, std::string_view layer_name);
  void reduce_weights(bool enabled) { reduce_weights_ = enabled; }

  // Returns the group of tensors in general: the chosen group, else the world.
  RankGroupPtr of_tensors() const;
  // For a tensor of that layer that a script passes: the group, null for this rank only, and
  // whether this rank logs the result.
  struct ForScript {
    RankGroupPtr group;
    bool logs = true;
  };
  ForScript for_script(std::string_view layer_name, const LogTensorStatsOptions& options,
                       bool is_last_rank) const;

  // Returns all groups; the caller fills in the due flags and the decisions.
  Reductions reductions() const;

 private:
  // Returns the group that was chosen for the layer, in this call or before; null if none was.
  RankGroupPtr chosen_for(std::string_view layer_name, const RankGroupPtr& in_call) const;

  RankGroupPtr world_;
  bool ranks_agree_ = true;

  mutable std::mutex mutex_;  // guards the members below
  RankGroupPtr chosen_;       // null for the default
  Reductions::OfLayers of_layers_;

  std::atomic<bool> reduce_weights_{true};
};

}  // namespace telens::debug
