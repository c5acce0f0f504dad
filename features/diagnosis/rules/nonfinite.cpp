#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "features/diagnosis/rules/rules.h"
#include "features/diagnosis/skipped_steps.h"

namespace telens::diagnosis {
namespace {

// The first count above zero, by iteration and then by turn.
const Series* first_nonfinite(const Facts& facts, std::int64_t& iteration) {
  const std::set<std::int64_t> skipped = steps_skipped_by_loss_scaler(facts);
  const Series* origin = nullptr;
  for (const Series* series : facts.with("nonfinite")) {  // by turn
    for (const Point& point : series->points) {
      if (!(point.value > 0) || skipped.contains(point.iteration)) continue;
      if (origin == nullptr || point.iteration < iteration) {
        origin = series;
        iteration = point.iteration;
      }
      break;
    }
  }
  return origin;
}

// The product of finite operands is the GEMM's own doing.
std::optional<Gemm> gemm_that_made(const Series& origin) {
  switch (*origin.place.tensor) {
    case TensorName::output:
      return Gemm::fprop;
    case TensorName::dgrad:
      return Gemm::dgrad;
    case TensorName::wgrad:
      return Gemm::wgrad;
    default:
      return origin.place.gemm;
  }
}

// ": its gradient was finite ..." where that was recorded: then it is the step that made it.
std::string gradient_before(const Facts& facts, const Series& weight, std::int64_t first) {
  Place place = weight.place;
  place.tensor = TensorName::wgrad;
  const Series* gradient = facts.find(place, "nonfinite");
  const Point* last = gradient != nullptr ? gradient->before(first) : nullptr;
  if (last == nullptr || last->value > 0) return "";
  return fmt::format(
      "; its gradient was finite in iteration {}: the optimizer's step made it, or something wrote "
      "to it",
      last->iteration);
}

// The question that the numbers leave open, and its answer: by the tensor that was first.
std::string suggest_next_step(const Place& place, std::int64_t iteration) {
  switch (*place.tensor) {
    case TensorName::weight:
      return fmt::format(
          "what wrote to the weight of '{{layer}}' before iteration {0}: the optimizer's step, or "
          "a "
          "checkpoint; debug.watch_optimizer(optimizer, every=1) records lr, grad_norm and "
          "update_to_weight of each step; print the optimizer's state of this weight (exp_avg_sq) "
          "and its gradient after clipping; "
          "telens plot RUN --layer '{{layer}}' --tensor wgrad --stat cur_amax",
          iteration);
    case TensorName::activation:
      return fmt::format(
          "the input of '{{layer}}' in iteration {0} comes from the code before it: the batch, a "
          "norm, an attention, an activation function; to find it, add a forward hook that asserts "
          "torch.isfinite to each preceding module; "
          "telens stats RUN --iterations {0} --stat nonfinite --stat cur_amax",
          iteration);
    case TensorName::gradient:
      return fmt::format(
          "the backward pass of iteration {0} between the loss and '{{layer}}': "
          "torch.autograd.set_detect_anomaly(True) from the last checkpoint on names the "
          "operation; a factor on the loss that is too large does it, too",
          iteration);
    default:
      return fmt::format(
          "telens stats RUN --iterations {0} --stat nonfinite --stat cur_amax --layer '{{layer}}'; "
          "its operands were finite: from the last checkpoint on, configs/nan_hunt.yaml keeps "
          "operands and result of each GEMM, and telens replay computes it anew",
          iteration);
  }
}

std::size_t places_with(const Facts& facts) {
  std::size_t places = 0;
  for (const Series* series : facts.with("nonfinite")) {
    for (const Point& point : series->points) {
      if (!(point.value > 0)) continue;
      ++places;
      break;
    }
  }
  return places;
}

std::optional<Finding> in_scalars(const Facts& facts) {
  std::optional<Finding> found;
  for (const Scalars& scalars : facts.scalars()) {
    for (const Point& point : scalars.points) {
      if (std::isfinite(point.value) || (found && found->first <= point.iteration)) continue;
      found = Finding{.cause = "nonfinite",
                      .place = {.rank = scalars.rank},
                      .first = point.iteration,
                      .last = scalars.points.back().iteration,
                      .confidence = kProven,
                      .summary = fmt::format(
                          "{} is not finite, and no recorded tensor was so before", scalars.name),
                      .evidence = {{scalars.name, {}, point.iteration, point.value, ""}},
                      .next_step = fmt::format(
                          "what is computed behind the last layer in iteration {}: the loss "
                          "function, its targets and their mask (a mean over no element is NaN)",
                          point.iteration)};
    }
  }
  return found;
}

std::vector<Finding> find(const Facts& facts) {
  const std::optional<Finding> scalar = in_scalars(facts);
  std::int64_t first = 0;
  const Series* origin = first_nonfinite(facts, first);
  if (origin == nullptr || (scalar && scalar->first < first)) {
    return scalar ? std::vector{*scalar} : std::vector<Finding>();
  }
  Finding finding{.cause = "nonfinite",
                  .place = origin->place,
                  .first = first,
                  .last = origin->points.back().iteration,
                  .confidence = kProven};
  finding.place.gemm = gemm_that_made(*origin);
  const double count = *origin->at(first);
  finding.summary =
      fmt::format("{:.0f} element{} not finite{}", count, count == 1 ? " is" : "s are",
                  and_others(places_with(facts) - 1, "tensor that became so with or after it"));
  if (*origin->place.tensor == TensorName::weight)
    finding.summary += gradient_before(facts, *origin, first);
  finding.next_step = suggest_next_step(finding.place, first);
  for (const std::string_view name : {"nonfinite", "nan", "posinf", "neginf"}) {
    const Series* series = facts.beside(*origin, name);
    const auto value = series != nullptr ? series->at(first) : std::nullopt;
    if (value && *value > 0) {
      finding.evidence.push_back({std::string(name), origin->place, first, *value, ""});
    }
  }
  if (const Series* amax = facts.beside(*origin, "cur_amax")) {
    if (const Point* before = amax->before(first)) {
      finding.evidence.push_back(
          {"cur_amax", origin->place, before->iteration, before->value, "before"});
    }
  }
  return {finding};
}

}  // namespace

Rule nonfinite() {
  return {
      .cause = "nonfinite",
      .title = "values that are not finite",
      .doc =
          "The first tensor with a NaN or an infinity, by iteration and then in the order "
          "of training: forward through the layers, then backward. Everything after it "
          "follows.",
      .stage = Stage::values,
      .required = {"nonfinite"},
      .optional = {"nan", "posinf", "neginf", "cur_amax", "l2_norm"},
      .recorded_by = "LogTensorStats (any statistic), ValueHistogram",
      .alternatives =
          "With a loss scaler, occasional Inf gradients in skipped steps are normal and are "
          "ignored. If the preceding module is not a TELens module, the problem may have started "
          "there.",
      .next_step =
          "telens stats RUN --stat nonfinite --stat cur_amax --layer '{layer}'; from "
          "the last checkpoint on, configs/nan_hunt.yaml records the inputs and results of each "
          "GEMM, which tell the one that made it",
      .find = find};
}

}  // namespace telens::diagnosis
