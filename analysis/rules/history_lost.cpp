#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// Returns true if the layer was cast before this iteration, outside of warm-up.
bool was_cast_before(const Facts& facts, std::int32_t layer, std::int64_t iteration) {
  for (const std::string_view name : {"scale_staleness", "scale_inv_max", "underflows%"}) {
    for (const Series* series : facts.with(name)) {
      if (series->place.layer != layer || series->points.empty()) continue;
      if (series->points.front().iteration < iteration) return true;
    }
  }
  return false;
}

// Returns the iteration in which the layer lost its history; nullopt if it did not.
std::optional<std::int64_t> find_lost_history(const Facts& facts, std::int32_t layer) {
  for (const std::int64_t iteration : facts.warm_up(layer)) {
    if (was_cast_before(facts, layer, iteration)) return iteration;
  }
  return std::nullopt;
}

// Detects an iteration in which most scales are 1 and were not 1 in the previous record.
std::vector<Finding> find_reset_scales(const Facts& facts) {
  constexpr double kMinResetShare = 0.5;
  constexpr std::size_t kMinResetScales = 3;
  std::map<std::int64_t, std::vector<Place>> reset;
  std::size_t tensors = 0;
  for (const Series* inverse : facts.with("scale_inv_max")) {
    ++tensors;
    for (std::size_t i = 1; i < inverse->points.size(); ++i) {
      if (inverse->points[i].value != 1 || inverse->points[i - 1].value == 1) continue;
      // The scale of a tensor that is zero or contains NaN is also 1.
      const Series* amax = facts.beside(*inverse, "cur_amax");
      const auto largest = amax != nullptr ? amax->at(inverse->points[i].iteration) : std::nullopt;
      if (largest && !(std::isfinite(*largest) && *largest > 0)) continue;
      reset[inverse->points[i].iteration].push_back(inverse->place);
    }
  }
  for (const auto& [iteration, places] : reset) {
    const bool is_most =
        static_cast<double>(places.size()) > kMinResetShare * static_cast<double>(tensors);
    if (places.size() < kMinResetScales || !is_most) continue;
    return {{.cause = "history_lost",
             .place = {.layer = places.front().layer},
             .first = iteration,
             .last = iteration,
             .confidence = kProven,
             .summary = fmt::format("{} of {} scales were reset to 1", places.size(), tensors),
             .evidence = {{"scale_inv_max", places.front(), iteration, 1, ""}}}};
  }
  return {};
}

// Detects a layer that starts without a history after a resume. Iteration 0 does not imply a new
// run: a resumed program may count from any number.
std::vector<Finding> find_lost_in_resume(const Facts& facts) {
  for (const auto& [last_before, first] : facts.resumes()) {
    for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(facts.layers()); ++layer) {
      const auto& warm_up = facts.warm_up(layer);
      const auto begin = warm_up.upper_bound(last_before);
      if (begin == warm_up.end() || *begin > first) continue;
      return {{.cause = "history_lost",
               .place = {.layer = layer},
               .first = *begin,
               .last = *warm_up.rbegin(),
               .confidence = kProbable,
               .summary =
                   fmt::format("the run resumes at iteration {} without an amax history", *begin),
               .evidence = {{"warm_up", {.layer = layer}, *begin, 1, "event"}}}};
    }
  }
  return {};
}

std::vector<Finding> find_history_lost(const Facts& facts) {
  std::vector<std::pair<std::int64_t, std::int32_t>> lost;
  for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(facts.layers()); ++layer) {
    if (const auto iteration = find_lost_history(facts, layer))
      lost.emplace_back(*iteration, layer);
  }
  if (lost.empty()) {
    auto reset = find_reset_scales(facts);
    return reset.empty() ? find_lost_in_resume(facts) : reset;
  }
  const auto [first, layer] = *std::ranges::min_element(lost);
  return {{.cause = "history_lost",
           .place = {.layer = layer},
           .first = first,
           .last = first,
           .confidence = kProven,
           .summary = fmt::format("the amax history is gone and every scale is 1 again{}",
                                  and_others(lost.size() - 1, "layer")),
           .evidence = {{"warm_up", {.layer = layer}, first, 1, "event"}}}};
}

}  // namespace

Rule history_lost() {
  return {.cause = "history_lost",
          .title = "amax history lost during training",
          .doc =
              "A layer that used delayed scaling has lost its amax history. Most of its gradients "
              "underflow until a new history exists. The first iterations of a layer are its "
              "warm-up and are not reported.",
          .stage = Stage::setup,
          .required = {},
          .optional = {"scale_staleness", "scale_inv_max", "underflows%", "cur_amax"},
          .recorded_by =
              "LogFp8TensorStats or ScaleHealth, also in the run before the resume (the same "
              "TELENS_RUN_ID)",
          .alternatives =
              "A model that was created again or a recipe that was switched in the same process; a "
              "checkpoint from training in another precision.",
          .next_step =
              "save and load the modules' _extra_state with the weights (state_dict() contains it; "
              "strict=False hides that it is missing; use te.load_fp8_state with save_pretrained)",
          .find = find_history_lost};
}

}  // namespace telens::analysis
