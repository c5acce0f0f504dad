#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "analysis/rules/compared_ranks.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Ranks are replicas if more than this share of the weights agrees at first.
constexpr double kMinAgreeingShare = 0.5;

// The norm of one weight on all ranks.
struct Replicas {
  std::vector<const Series*> ranks;      // one series per rank
  std::int64_t first_common = 0;         // first iteration that all ranks recorded
  std::optional<std::int64_t> diverged;  // first iteration in which they differ
  bool agree_at_first = false;
};

void compare_replicas(Replicas& replicas) {
  const Series& first = *replicas.ranks.front();
  bool is_first = true;
  for (const Point& point : first.points) {
    bool common = true;
    bool agree = true;
    for (const Series* other : replicas.ranks) {
      const auto value = other->at(point.iteration);
      // Non-finite values are the subject of another rule, and NaNs are never equal.
      common = common && value && std::isfinite(*value) && std::isfinite(point.value);
      agree = agree && value == point.value;
    }
    if (!common) continue;
    if (is_first) {
      replicas.first_common = point.iteration;
      replicas.agree_at_first = agree;
      is_first = false;
    }
    if (!agree && replicas.agree_at_first) {
      replicas.diverged = point.iteration;
      return;
    }
  }
}

// Returns the only rank that differs if all others agree; else the second rank.
const Series* odd_one(const Replicas& replicas) {
  std::map<double, std::vector<const Series*>> by_value;
  for (const Series* series : replicas.ranks) {
    by_value[series->at(*replicas.diverged).value_or(0)].push_back(series);
  }
  if (replicas.ranks.size() > 2) {
    for (const auto& [value, ranks] : by_value) {
      if (ranks.size() == 1) return ranks.front();
    }
  }
  return replicas.ranks[1];
}

std::vector<Replicas> list_replicas(const Facts& facts) {
  std::map<std::int32_t, Replicas> by_layer;
  for (const Series* norm : facts.with("l2_norm")) {
    if (norm->place.tensor != TensorName::weight || norm->place.rank == kAllRanks) continue;
    by_layer[norm->place.layer].ranks.push_back(norm);
  }
  std::vector<Replicas> all;
  for (auto& [layer, replicas] : by_layer) {
    if (replicas.ranks.size() < 2) continue;
    compare_replicas(replicas);
    all.push_back(std::move(replicas));
  }
  return all;
}

std::vector<Finding> find_by_norms(const Facts& facts) {
  const std::vector<Replicas> all = list_replicas(facts);
  const auto agreeing = std::ranges::count_if(all, &Replicas::agree_at_first);
  if (static_cast<double>(agreeing) <= kMinAgreeingShare * static_cast<double>(all.size()))
    return {};
  const Replicas* origin = nullptr;
  std::size_t others = 0;
  for (const Replicas& each : all) {
    if (!each.diverged) continue;
    ++others;
    if (origin == nullptr || *each.diverged < *origin->diverged) origin = &each;
  }
  if (origin == nullptr) return {};
  const Series& odd = *odd_one(*origin);
  Finding finding{
      .cause = "rank_mismatch",
      .place = odd.place,
      .first = *origin->diverged,
      .last = facts.last_iteration(),
      .confidence = kProven,
      .summary = fmt::format("the weight differs between ranks, although it was the same before{}",
                             and_others(others - 1, "weight"))};
  for (const Series* series : origin->ranks) {
    finding.evidence.push_back({"l2_norm", series->place, finding.first,
                                series->at(finding.first).value_or(0),
                                fmt::format("rank {}", series->place.rank)});
  }
  return {finding};
}

std::vector<Finding> find_rank_mismatch(const Facts& facts) {
  auto compared = find_rank_difference(
      facts, {.cause = "rank_mismatch",
              .statistic = "weight_differs",
              .summary = "the weight differs from the weight of the other ranks",
              .others = "weight"});
  return facts.has("weight_differs") ? compared : find_by_norms(facts);
}

}  // namespace

Rule rank_mismatch() {
  return {
      .cause = "rank_mismatch",
      .title = "replicas of a weight diverge between ranks",
      .doc =
          "The norm of a weight is bitwise equal on all ranks, and from some iteration on it is "
          "not. If most weights differ from the start, the run is sharded and nothing is reported. "
          "If RankAgreement compared the weights, its result is used from the start on, because it "
          "knows which weights are replicas and which are shards.",
      .stage = Stage::setup,
      .required = {"l2_norm|weight_differs"},
      .compares_ranks = true,
      .follows_causes = {"unreduced_gradient", "unlike_inputs"},
      .recorded_by =
          "RankAgreement; LogTensorStats of weights (l2_norm) on all ranks, not reduced over them",
      .alternatives =
          "A rank with a faulty device; an optimizer step that one rank skipped; different inputs "
          "on ranks of one tp_group.",
      .next_step =
          "telens stats RUN --layer '{layer}' --tensor weight --stat weight_differs l2_norm --by "
          "rank; look for parameters outside of DistributedDataParallel, no_sync() in the last "
          "micro-batch, code that only some ranks run, and ranks of one tp_group with different "
          "batches",
      .find = find_rank_mismatch};
}

}  // namespace telens::analysis
