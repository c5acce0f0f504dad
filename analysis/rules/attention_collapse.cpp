#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Maximum entropy of a collapsed attention, in percent of the largest possible entropy.
constexpr double kMaxCollapsedEntropy = 15;
// A fall to about a third (2^-1.5).
constexpr ShiftOptions kEntropyFall{.least_bits = 1.5};
// Minimum percentage of queries that attend to a single key other than an attention sink.
constexpr double kMinSingleKeyQueries = 30;

// Returns the percentage of queries that attend to a single key other than the first, or nullopt if
// it was not recorded. Attention sinks, which use the first key, are healthy.
std::optional<double> get_single_key_queries(const Facts& facts, const Place& place,
                                             std::int64_t iteration) {
  const auto value = [&](std::string_view statistic) -> std::optional<double> {
    const Series* series = facts.find(place, statistic);
    return series != nullptr ? series->at(iteration) : std::nullopt;
  };
  const auto one = value("one_key%");
  const auto first = value("first_key%");
  if (!one || !first) return std::nullopt;
  return *one - *first;
}

std::vector<Finding> find_attention_collapse(const Facts& facts) {
  std::vector<Series> entropies;
  for (const Series* series : facts.with("attention_entropy%")) entropies.push_back(*series);
  std::vector<Finding> found;
  for (const auto& group : shifts_together(entropies, -1, kEntropyFall)) {
    const auto& [place, shift, settled] = group.front();
    if (shift.value > kMaxCollapsedEntropy) continue;
    const auto share = get_single_key_queries(facts, place, shift.first);
    if (!share || *share < kMinSingleKeyQueries) continue;
    found.push_back(
        {.cause = "attention_collapse",
         .place = place,
         .first = shift.first,
         .last = shift.last,
         .confidence = kProbable,
         .summary = fmt::format("the entropy falls from {:.3g} to {:.3g} % of its maximum, and "
                                "{:.3g} % of the queries attend to a single key{}",
                                shift.usual, shift.value, *share,
                                and_others(group.size() - 1, "attention layer")),
         .evidence = {{"attention_entropy%", place, shift.first, shift.value, ""},
                      {"attention_entropy%", place, shift.first - 1, shift.usual, "usual"},
                      {"one_key% - first_key%", place, shift.first, *share, ""}}});
  }
  return found;
}

}  // namespace

Rule attention_collapse() {
  return {
      .cause = "attention_collapse",
      .title = "attention entropy collapse",
      .doc =
          "The attention entropy falls to a third or less within one iteration, to at most 15 % of "
          "its maximum, and stays there. At least 30 % of the queries attend to a single key other "
          "than the first key that they see. Attention sinks, which use the first key, are not "
          "reported. Neither is a slow decrease, which is normal learning.",
      .stage = Stage::propagation,
      .required = {"attention_entropy%", "one_key%", "first_key%"},
      .recorded_by = "LogTensorStats of `scores` (attention_entropy%, one_key%, first_key%)",
      .alternatives =
          "Exploding logits (attention_logits); changed keys or a changed bias that makes one "
          "position win for every query.",
      .next_step = "telens plot RUN --layer '{layer}' --tensor scores --stat attention_entropy%",
      .find = find_attention_collapse};
}

}  // namespace telens::analysis
