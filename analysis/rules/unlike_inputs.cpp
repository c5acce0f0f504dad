#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr std::string_view kReplicaDiffers = "replica_differs";

struct FirstDifference {
  const Series* series = nullptr;
  Point point;
};

// Returns the earliest difference; within an iteration, the first in training order.
std::optional<FirstDifference> find_first_difference(const Facts& facts,
                                                     std::string_view statistic) {
  std::optional<FirstDifference> first;
  for (const Series* series : facts.with(statistic)) {
    const auto differs =
        std::ranges::find_if(series->points, [](const Point& point) { return point.value > 0; });
    if (differs == series->points.end()) continue;
    if (!first || differs->iteration < first->point.iteration) first = {series, *differs};
  }
  return first;
}

// Returns true if no tensor before this one in the step was compared.
bool is_first_of_step(const Facts& facts, const Place& place) {
  const StepOrder order = get_order_in_step(place);
  return std::ranges::none_of(facts.with(kReplicaDiffers), [&](const Series* series) {
    return get_order_in_step(series->place) < order;
  });
}

// Returns true if inputs were compared on the rank. RankAgreement may be configured for gradients
// only.
bool has_compared_inputs(const Facts& facts, int rank) {
  return std::ranges::any_of(facts.with(kReplicaDiffers), [&](const Series* series) {
    return series->place.tensor == TensorName::activation && series->place.rank == rank;
  });
}

std::string describe_difference(const Facts& facts, const Place& place) {
  if (place.tensor == TensorName::gradient && has_compared_inputs(facts, place.rank)) {
    return "the gradient differs from the other ranks of the tp_group, while all compared inputs "
           "agree: the targets, the loss, or the code between this layer and the loss differ";
  }
  if (place.tensor == TensorName::gradient) {
    return "the gradient differs from the other ranks of the tp_group: the batches, targets or "
           "losses differ; inputs were not compared";
  }
  if (is_first_of_step(facts, place)) {
    return "the input differs from the other ranks of the tp_group, and it is the first tensor of "
           "a step that must be the same on all of them: the batches differ";
  }
  return "the input differs from the other ranks of the tp_group, while the inputs of the "
         "preceding layers agree: the code between these layers behaves differently, for example "
         "because of the dropout seed";
}

std::vector<Finding> find_unlike_inputs(const Facts& facts) {
  const auto first = find_first_difference(facts, kReplicaDiffers);
  if (!first) return {};
  const Place& place = first->series->place;
  // Different weights cause different outputs. Weights are compared after the optimizer step, so a
  // difference of weights may also follow from this iteration's inputs.
  const auto weights = find_first_difference(facts, "weight_differs");
  const bool weights_come_first =
      weights && (weights->point.iteration < first->point.iteration ||
                  (weights->point.iteration == first->point.iteration &&
                   !is_first_of_step(facts, place) && place.tensor != TensorName::gradient));
  if (weights_come_first) return {};
  return {{.cause = "unlike_inputs",
           .place = place,
           .first = first->point.iteration,
           .last = std::max(facts.last_iteration(), first->point.iteration),
           .confidence = kProven,
           .summary = describe_difference(facts, place),
           .evidence = {{std::string(kReplicaDiffers), place, first->point.iteration,
                         first->point.value, fmt::format("rank {}", place.rank)}}}};
}

}  // namespace

Rule unlike_inputs() {
  return {
      .cause = "unlike_inputs",
      .title = "different inputs on ranks of one tp_group",
      .doc =
          "RankAgreement compared the activations and gradients that are replicated in a tp_group. "
          "One of them differs between the ranks, while the weights of the preceding layers do "
          "not. Gradients and weights that diverge in the same iteration are consequences.",
      .stage = Stage::setup,
      .required = {kReplicaDiffers},
      .compares_ranks = true,
      .recorded_by =
          "RankAgreement with `tensors: [activation, gradient]`, for layers that a tp_group shards "
          "without sequence parallelism",
      .alternatives =
          "An embedding before the first recorded layer whose weight differs (weight_differs in "
          "the same iteration); kernels that each rank selects by autotuning and that round "
          "differently.",
      .next_step =
          "give all ranks of one tp_group the same batches in the same order: seed the sampler "
          "with the data-parallel rank, not with the global rank; telens stats RUN --layer "
          "'{layer}' --stat replica_differs --by rank",
      .find = find_unlike_inputs};
}

}  // namespace telens::analysis
