#include "hooks/session/reduction_groups.h"

#include <string>
#include <utility>

namespace telens::debug {

void ReductionGroups::begin(RankGroupPtr world, bool ranks_agree) {
  ranks_agree_ = ranks_agree;
  world_ = ranks_agree ? std::move(world) : nullptr;
}

void ReductionGroups::choose(RankGroupPtr group, std::string_view layer_name) {
  const std::lock_guard lock(mutex_);
  if (layer_name.empty()) {
    chosen_ = std::move(group);
  } else if (group) {
    of_layers_.insert_or_assign(std::string(layer_name), std::move(group));
  } else {
    of_layers_.erase(std::string(layer_name));
  }
}

RankGroupPtr ReductionGroups::of_tensors() const {
  if (!ranks_agree_) return nullptr;
  const std::lock_guard lock(mutex_);
  return chosen_ ? chosen_ : world_;
}

RankGroupPtr ReductionGroups::chosen_for(std::string_view layer_name,
                                         const RankGroupPtr& in_call) const {
  if (!ranks_agree_) return nullptr;
  if (in_call) return in_call;
  const std::lock_guard lock(mutex_);
  const auto of_layer = of_layers_.find(layer_name);
  return of_layer == of_layers_.end() ? chosen_ : of_layer->second;
}

ReductionGroups::ForScript ReductionGroups::for_script(std::string_view layer_name,
                                                       const LogTensorStatsOptions& options,
                                                       bool is_last_rank) const {
  if (options.skip_reduction) return {};
  const RankGroupPtr chosen = chosen_for(layer_name, options.reduction_group);
  if (chosen) return {chosen, true};
  // If the world is null, the tensor is local to this rank.
  return {world_, is_last_rank || world_ == nullptr};
}

Reductions ReductionGroups::reductions() const {
  Reductions reductions{.world = world_, .tensors = of_tensors(), .weights = reduce_weights_};
  if (ranks_agree_) {
    const std::lock_guard lock(mutex_);
    reductions.tensors_of_layers = of_layers_;
  }
  return reductions;
}

}  // namespace telens::debug
