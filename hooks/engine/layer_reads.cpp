#include "hooks/engine/layer_reads.h"

#include <algorithm>

#include "hooks/engine/tensor_observation.h"

namespace telens::features {

ScaleMemory& TensorHistory::get_scale(RecipeId recipe) {
  const auto known = std::ranges::find(scales, recipe, &std::pair<RecipeId, ScaleMemory>::first);
  return known != scales.end() ? known->second : scales.emplace_back(recipe, ScaleMemory()).second;
}

LayerReads::LayerReads(std::string name) : name_(std::move(name)) {
  for (const TensorName tensor : kAllTensors) {
    for (const bool evaluation : {false, true}) {
      TensorHistory& made = history(tensor, evaluation);
      made.layer_name = &name_;
      made.tensor = tensor;
      made.evaluation = evaluation;
    }
  }
}

std::shared_ptr<TensorObservation> LayerReads::observation(
    TensorName tensor, bool evaluation, std::int64_t iteration,
    const debug::ReductionGroup& weight_group, std::atomic<std::uint64_t>& next) {
  TensorHistory& of = history(tensor, evaluation);
  const std::lock_guard lock(mutex_);
  const auto known =
      std::ranges::find_if(open_, [&](const auto& each) { return each->is_of(of, iteration); });
  if (known != open_.end()) return *known;
  return open_.emplace_back(std::make_shared<TensorObservation>(
      of, iteration, weight_group, next.fetch_add(1, std::memory_order_relaxed)));
}

void LayerReads::take(const Reductions& reductions, Observations& taken) {
  const std::lock_guard lock(mutex_);
  const auto waits = [&](const auto& each) {
    const bool is_read = each.use_count() > 1;  // its sums are not complete
    return is_read || each->waits(reductions);
  };
  const auto complete = std::stable_partition(open_.begin(), open_.end(), waits);
  taken.insert(taken.end(), complete, open_.end());
  open_.erase(complete, open_.end());
}

}  // namespace telens::features
