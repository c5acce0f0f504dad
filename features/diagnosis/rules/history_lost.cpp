#include <fmt/format.h>

#include <algorithm>

#include "features/diagnosis/rules/rules.h"

namespace telens::diagnosis {
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

std::vector<Finding> find(const Facts& facts) {
  std::vector<std::pair<std::int64_t, std::int32_t>> lost;
  for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(facts.layers()); ++layer) {
    if (const auto iteration = lost_in(facts, layer)) lost.emplace_back(*iteration, layer);
  }
  if (lost.empty()) return {};
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
          .title = "delayed scaling begins anew in the middle of a training",
          .doc =
              "A layer that was cast under delayed scaling has no amax history: most of its "
              "gradients underflow until there is one again. The first iterations of a layer "
              "are its warm-up and no loss.",
          .stage = Stage::setup,
          .required = {},
          .optional = {"scale_staleness", "scale_inv_max", "underflows%"},
          .recorded_by =
              "LogFp8TensorStats or ScaleHealth, in the run before the resume too "
              "(the same TELENS_RUN_ID)",
          .alternatives =
              "A model that was made anew, or a recipe that was switched, in the same "
              "process.",
          .next_step =
              "save and load the modules' _extra_state with the weights "
              "(state_dict() holds it; strict=False hides that it is missing; "
              "te.load_fp8_state for save_pretrained)",
          .find = find};
}

}  // namespace telens::diagnosis
