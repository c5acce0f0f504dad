// The groups over which statistics are reduced: those that the program chose, else the world.
#pragma once

#include <atomic>
#include <mutex>
#include <string_view>

#include "hooks/reductions.h"
#include "hooks/session_options.h"

namespace telens::debug {

// Any thread, but for begin().
class ReductionGroups {
 public:
  // Once, before the other calls. Ranks that do not agree on what is watched reduce nothing.
  void begin(ReductionGroup world, bool ranks_agree);

  // All ranks, or null: this rank is alone.
  const ReductionGroup& world() const { return world_; }

  // Chooses the group of one layer, or with an empty name that of all others. Null: the default.
  void choose(ReductionGroup group, std::string_view layer_name);
  void reduce_weights(bool enabled) { reduce_weights_ = enabled; }

  // The group of tensors in general: the chosen one, else the world.
  ReductionGroup of_tensors() const;
  // For a tensor of that layer that a script hands over: the group, null for this rank alone, and
  // whether this rank logs what comes of it.
  struct ForScript {
    ReductionGroup group;
    bool logs = true;
  };
  ForScript for_script(std::string_view layer_name, const LogTensorStatsOptions& options,
                       bool is_last_rank) const;

  // All of them; what is due and decided is left to be filled in.
  Reductions reductions() const;

 private:
  // The group that was chosen for the layer, in one call or before; null: none was.
  ReductionGroup chosen_for(std::string_view layer_name, const ReductionGroup& in_call) const;

  ReductionGroup world_;
  bool ranks_agree_ = true;

  mutable std::mutex mutex_;  // over what follows
  ReductionGroup chosen_;     // null: the default
  Reductions::OfLayers of_layers_;

  std::atomic<bool> reduce_weights_{true};
};

}  // namespace telens::debug
