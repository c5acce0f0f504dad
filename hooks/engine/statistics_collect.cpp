// Computes rows from sums at the end of an iteration, merged over the ranks that share a tensor.
#include <algorithm>
#include <span>
#include <utility>

#include "core/base/fnv1a.h"
#include "hooks/clock.h"
#include "hooks/engine/one_pass_engine.h"
#include "hooks/engine/rank_exchange.h"

namespace telens::features {
namespace {

// Collects the sums of a collect() by group, and merges them.
class Exchanges {
 public:
  explicit Exchanges(const Reductions& reductions) : reductions_(reductions) {}

  void add(const RankGroupPtr& group) {
    if (has_several_ranks(group)) groups_.try_emplace(group->name(), group);
  }

  // Adds the sums of an observation to its group. No effect if the group has a single rank.
  void add(const RankGroupPtr& group, const TensorObservation& observation, Totals& totals) {
    if (!has_several_ranks(group)) return;
    add(group);
    const std::uint64_t hash = observation.hash();
    std::vector<SharedSums>& shared = shared_[group->name()];
    const bool brings_nothing = observation.is_brought_by_another(*group, reductions_);
    for (Totals::Slot& each : totals.slots()) {
      if (brings_nothing) bring_nothing(each.sums);
      shared.push_back({mixed(hash, each.key.hash()), &each.sums});
    }
  }

  // Merges the sums of this group first. Returns the notes of its ranks.
  std::vector<Notes> run_first(RankGroup& group, const Notes& notes) {
    const std::string id = group.name();
    groups_.erase(id);
    const std::vector<SharedSums> sums = std::exchange(shared_[id], {});
    return merge_over_ranks(sums, group, notes);
  }

  // Merges the sums of the remaining groups, ordered by name: ranks that share several groups must
  // use the same order.
  void run_all() {
    for (const auto& [id, group] : groups_) merge_over_ranks(shared_[id], *group);
  }

 private:
  const Reductions& reductions_;
  Groups groups_;
  std::map<std::string, std::vector<SharedSums>> shared_;
};

// Removes and returns the first word of every rank's notes.
Notes take_first(std::vector<Notes>& of_ranks) {
  Notes first;
  for (Notes& notes : of_ranks) {
    first.push_back(notes.front());
    notes.erase(notes.begin());
  }
  return first;
}

// Returns true if these reductions require an exchange with other ranks.
bool exchanges_any(const Reductions& reductions) {
  const bool of_world = reductions.weights_are_due || reductions.decisions_are_due;
  if (of_world && has_several_ranks(reductions.world)) return true;
  if (!reductions.tensors_are_due) return false;
  return has_several_ranks(reductions.tensors) ||
         std::ranges::any_of(reductions.tensors_of_layers, [](const auto& of_layer) {
           return has_several_ranks(of_layer.second);
         });
}

}  // namespace

Observations OnePassEngine::take_observations(const Reductions& reductions) {
  Observations taken;
  {
    const std::lock_guard lock(layers_mutex_);
    for (const auto& [name, layer] : layers_) layer->take(reductions, taken);
  }
  std::ranges::sort(taken, {}, [](const auto& each) { return each->number(); });
  return taken;
}

// Returns the totals in the order of the observations, which is the order of their sums.
std::vector<Totals> OnePassEngine::get_totals(const Arrived& arrived) {
  std::vector<Totals> totals;
  HostSums sums(arrived.tensors);
  for (const auto& each : arrived.work) totals.push_back(each->totals(sums, defined_));
  return totals;
}

std::vector<RankGroupPtr> OnePassEngine::exchange(const Observations& observations,
                                                  std::vector<Totals>& totals,
                                                  const Reductions& reductions,
                                                  Collected& collected) {
  std::vector<RankGroupPtr> shared_with(observations.size());
  Exchanges exchanges(reductions);
  const auto share_where = [&](bool weights, const auto& is_shared) {
    for (std::size_t i = 0; i < observations.size(); ++i) {
      if (observations[i]->is_weight() != weights) continue;
      RankGroupPtr group = observations[i]->group(reductions);
      if (!has_several_ranks(group) || !is_shared(*group)) continue;
      exchanges.add(group, *observations[i], totals[i]);
      shared_with[i] = std::move(group);
    }
  };
  if (reductions.tensors_are_due) {
    exchanges.add(reductions.tensors);
    for (const auto& [layer, group] : reductions.tensors_of_layers) exchanges.add(group);
    share_where(/*weights=*/false, [](const auto&) { return true; });
  }
  // Whether to share weights may differ between ranks; when they are due may not.
  if (has_several_ranks(reductions.world) &&
      (reductions.weights_are_due || reductions.decisions_are_due)) {
    Notes own;
    if (reductions.weights_are_due) own.push_back(weight_groups_.note(reductions.weights));
    if (reductions.decisions_are_due) {
      own.insert(own.end(), reductions.decisions.begin(), reductions.decisions.end());
    }
    std::vector<Notes> notes = exchanges.run_first(*reductions.world, own);
    if (reductions.weights_are_due) {
      const Groups& agreed = weight_groups_.agree(take_first(notes), *reductions.world);
      for (const auto& [id, group] : agreed) exchanges.add(group);
      share_where(/*weights=*/true,
                  [&](const RankGroup& group) { return agreed.contains(group.name()); });
    }
    if (reductions.decisions_are_due) collected.decisions = std::move(notes);
  }
  exchanges.run_all();
  return shared_with;
}

Collected OnePassEngine::collect(std::int64_t iteration, const Reductions& reductions,
                                 Waiting waiting) {
  Observations newest = take_observations(reductions);
  captured_.end_iteration(
      iteration, [&](const CapturedRead& read, std::int64_t of) -> auto& {
        // Reads outside of this graph may already have created the observation.
        TensorHistory& history = read.layer->history(read.tensor, read.evaluation);
        const auto known = std::ranges::find_if(
            newest, [&](const auto& each) { return each->is_of(history, of); });
        if (known != newest.end()) return **known;
        return *newest.emplace_back(std::make_shared<TensorObservation>(
            history, of, read.weight_group, next_observation_++));
      });
  std::vector<TensorHandle> sums;
  for (const auto& each : newest) each->give_sums(sums);
  arrivals_.add(std::move(sums), std::move(newest));
  const bool shares = exchanges_any(reductions);
  std::vector<Arrived> arrived = arrivals_.take(shares ? Waiting::yes : waiting);
  Collected collected;
  for (Arrived& each : arrived) {
    std::vector<Totals> totals = get_totals(each);
    std::vector<RankGroupPtr> shared_with(each.work.size());
    // Copies from an earlier step were not due in that step, so no other rank contributes to them.
    if (shares && &each == &arrived.back()) {
      const double begin = seconds_now();
      shared_with = exchange(each.work, totals, reductions, collected);
      collected.exchange_seconds = seconds_now() - begin;
    }
    for (std::size_t i = 0; i < each.work.size(); ++i) {
      each.work[i]->append_rows(totals[i], telens::get_name(shared_with[i]), series_,
                                collected.rows);
    }
  }
  return collected;
}

}  // namespace telens::features
