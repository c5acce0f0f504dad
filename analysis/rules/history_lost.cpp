#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

// The layer has been cast before this iteration, outside of warm-up.
bool was_cast_before(const Facts& facts, std::int32_t layer, std::int64_t iteration) {
  for (const std::string_view name : {"scale_staleness", "scale_inv_max", "underflows%"}) {
    for (const Series* series : facts.with(name)) {
      if (series->place.layer != layer || series->points.empty()) continue;
      if (series->points.front().iteration < iteration) return true;
    }
  }
  return false;
}

// The iteration in which the layer had no history any more.
std::optional<std::int64_t> lost_in(const Facts& facts, std::int32_t layer) {
  for (const std::int64_t iteration : facts.warm_up(layer)) {
    if (was_cast_before(facts, layer, iteration)) return iteration;
  }
  return std::nullopt;
}

// Most scales are 1 in an iteration and were not in the one before.
std::vector<Finding> all_scales_reset(const Facts& facts) {
  constexpr double kMost = 0.5;
  constexpr std::size_t kLeast = 3;
  std::map<std::int64_t, std::vector<Place>> reset;
  std::size_t tensors = 0;
  for (const Series* inverse : facts.with("scale_inv_max")) {
    ++tensors;
    for (std::size_t i = 1; i < inverse->points.size(); ++i) {
      if (inverse->points[i].value != 1 || inverse->points[i - 1].value == 1) continue;
      // The scale of a tensor with a NaN is 1 too.
      const Series* amax = facts.beside(*inverse, "cur_amax");
      const auto largest = amax != nullptr ? amax->at(inverse->points[i].iteration) : std::nullopt;
      if (largest && !(std::isfinite(*largest) && *largest > 0)) continue;
      reset[inverse->points[i].iteration].push_back(inverse->place);
    }
  }
  for (const auto& [iteration, places] : reset) {
    const bool most = static_cast<double>(places.size()) > kMost * static_cast<double>(tensors);
    if (places.size() < kLeast || !most) continue;
    return {{.cause = "history_lost",
             .place = {.layer = places.front().layer},
             .first = iteration,
             .last = iteration,
             .confidence = kProven,
             .summary = fmt::format("{} of {} scales are 1 again", places.size(), tensors),
             .evidence = {{"scale_inv_max", places.front(), iteration, 1, ""}}}};
  }
  return {};
}

// The run was resumed and a layer starts without a history. The number of the first iteration is
// not used, because a program may count from any number.
std::vector<Finding> lost_in_resume(const Facts& facts) {
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
    if (const auto iteration = lost_in(facts, layer)) lost.emplace_back(*iteration, layer);
  }
  if (lost.empty()) {
    auto reset = all_scales_reset(facts);
    return reset.empty() ? lost_in_resume(facts) : reset;
  }
  const auto [first, layer] = *std::ranges::min_element(lost);
  return {{.cause = "history_lost",
           .place = {.layer = layer},
           .first = first,
           .last = first,
           .confidence = kProven,
           .summary = fmt::format("the amax history is gone and every scale 1 again{}",
                                  and_others(lost.size() - 1, "layer")),
           .evidence = {{"warm_up", {.layer = layer}, first, 1, "event"}}}};
}

}  // namespace

Rule history_lost() {
  return {.cause = "history_lost",
          .title = "amax history lost during training",
          .doc =
              "A layer that used delayed scaling has lost its amax history. Most of its "
              "gradients underflow until a new history exists. The first iterations of a layer "
              "are its warm-up and are not reported.",
          .stage = Stage::setup,
          .required = {},
          .optional = {"scale_staleness", "scale_inv_max", "underflows%", "cur_amax"},
          .recorded_by =
              "LogFp8TensorStats or ScaleHealth, also in the run before the resume (the same "
              "TELENS_RUN_ID)",
          .alternatives =
              "A model that was created again or a recipe that was switched in the same process; a "
              "checkpoint of a training in another precision.",
          .next_step =
              "save and load the modules' _extra_state with the weights "
              "(state_dict() holds it; strict=False hides that it is missing; "
              "te.load_fp8_state for save_pretrained)",
          .find = find_history_lost};
}

}  // namespace telens::analysis
