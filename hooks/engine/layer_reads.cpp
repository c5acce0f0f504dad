#include "hooks/engine/layer_reads.h"

#include <algorithm>

#include "hooks/engine/tensor_observation.h"

namespace telens::features {

void KnownSeries::begin(std::string_view group) {
  next_ = 0;
  if (group_ == group) return;
  group_ = group;
  all_.clear();
}

std::size_t KnownSeries::find(const StatisticName& name) {
  for (std::size_t tried = 0; tried < all_.size(); ++tried, ++next_) {
    if (next_ >= all_.size()) next_ = 0;
    if (all_[next_].first == name) return next_++;
  }
  return all_.size();
}

std::size_t KnownSeries::add(const StatisticName& name, const Series& series) {
  all_.emplace_back(name, &series);
  next_ = all_.size();
  return all_.size() - 1;
}

namespace {

void merge(RowAddress& into, const RowAddress& other) {
  into.loggers |= other.loggers;
  into.run_file |= other.run_file;
  into.rings |= other.rings;
}

}  // namespace

void RowAddresses::add(const StatisticName& name, bool logged, std::uint64_t rings) {
  RowAddresses one;
  one.all_.push_back({name, {logged && rings == 0, rings == 0, rings}});
  add(one);
}

void RowAddresses::add(const RowAddresses& others) {
  for (const auto& [name, address] : others.all_) {
    const auto found = std::ranges::find(all_, name, [](const auto& each) { return each.first; });
    if (found == all_.end()) {
      all_.push_back({name, address});
    } else {
      merge(found->second, address);
    }
  }
}

std::optional<RowAddress> RowAddresses::of(const StatisticName& name) const {
  const auto found = std::ranges::find(all_, name, [](const auto& each) { return each.first; });
  return found == all_.end() ? std::nullopt : std::optional(found->second);
}

RowAddress RowAddresses::of_counters() const {
  RowAddress all;
  for (const auto& [name, address] : all_) merge(all, address);
  all.loggers = false;
  return all;
}

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

std::shared_ptr<TensorObservation> LayerReads::observation(TensorName tensor, bool evaluation,
                                                           std::int64_t iteration,
                                                           const RankGroupPtr& weight_group,
                                                           std::atomic<std::uint64_t>& next) {
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
    const bool is_read = each.use_count() > 1;  // a reader still adds to it
    return is_read || each->waits(reductions);
  };
  const auto complete = std::stable_partition(open_.begin(), open_.end(), waits);
  taken.insert(taken.end(), complete, open_.end());
  open_.erase(complete, open_.end());
}

}  // namespace telens::features
