#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "analysis/rules/rules.h"
#include "analysis/rules/scalar_reads.h"
#include "analysis/skipped_steps.h"

namespace telens::analysis {
namespace {

// Returns the tensor that is the first to have a non-finite element, by iteration and then in
// training order, and sets `iteration`. Ignores steps that a loss scaler skipped. Returns nullptr
// if there is none.
const Series* first_nonfinite(const Facts& facts, std::int64_t& iteration) {
  const std::set<std::int64_t> skipped = steps_skipped_by_loss_scaler(facts);
  const Series* origin = nullptr;
  for (const Series* series : facts.with("nonfinite")) {  // in training order
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

// Returns the GEMM that computed the tensor; for an operand, the GEMM it was recorded for, if any.
std::optional<Gemm> get_producing_gemm(const Series& origin) {
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

bool is_backward(const Place& place) { return std::get<0>(get_order_in_step(place)) == 1; }

// Returns true if the tensor was recorded in the iteration and all of its elements were finite.
bool was_finite(const Facts& facts, Place place, TensorName tensor, std::int64_t iteration) {
  place.tensor = tensor;
  place.gemm.reset();
  const Series* series = facts.find(place, "nonfinite");
  return series != nullptr && series->at(iteration) == 0.0;
}

// Returns the last tensor of the forward or backward pass that was recorded in the iteration,
// except weights.
const Series* last_recorded(const Facts& facts, bool backward, std::int64_t iteration) {
  const Series* last = nullptr;
  for (const Series* series : facts.with("nonfinite")) {  // in training order
    const bool is_candidate = is_backward(series->place) == backward &&
                              series->place.tensor != TensorName::weight && series->at(iteration);
    if (is_candidate) last = series;
  }
  return last;
}

// The point within a step at which a scalar is computed. It is unknown for scalars that only the
// program knows (`program`).
enum class Moment : std::uint8_t { loss, program, before_update, after_update };

struct NonfiniteScalar {
  const Scalars* scalars = nullptr;
  Point point;
  Moment moment = Moment::program;
};

Moment get_moment(std::string_view name) {
  if (name == "loss") return Moment::loss;
  name.remove_prefix(name.rfind('.') == std::string_view::npos ? 0 : name.rfind('.') + 1);
  if (name == "grad_norm") return Moment::before_update;
  const bool reads_update =
      name == "update_to_weight" || name == "lost_updates%" || name == "lost_decay%";
  return reads_update ? Moment::after_update : Moment::program;
}

// Returns the first non-finite scalar, by iteration and then by its moment in the step.
std::optional<NonfiniteScalar> find_nonfinite_scalar(const Facts& facts) {
  const std::set<std::int64_t> skipped = steps_skipped_by_loss_scaler(facts);
  std::optional<NonfiniteScalar> first;
  for (const Scalars& scalars : facts.scalars()) {
    const Moment moment = get_moment(scalars.name);
    for (const Point& point : scalars.points) {
      if (std::isfinite(point.value)) continue;
      if (moment != Moment::loss && skipped.contains(point.iteration)) continue;
      const auto is_before = [&](const NonfiniteScalar& known) {
        return std::tuple(known.point.iteration, known.moment) <=
               std::tuple(point.iteration, moment);
      };
      if (!first || !is_before(*first)) first = {&scalars, point, moment};
      break;
    }
  }
  return first;
}

constexpr std::string_view kAfterBackward =
    "accumulation into .grad or main_grad, the reduction over ranks, unscaling, clipping";

// Returns a clause on the origin of a non-finite weight: that it is so from the first record on, or
// that its gradient was finite before. Returns "" if neither was recorded.
std::string describe_weight_origin(const Facts& facts, const Series& weight, std::int64_t first) {
  if (first == facts.first_iteration() && weight.points.front().iteration == first)
    return "; the weight is non-finite from the first recorded iteration on: check the "
           "initialization or the checkpoint";
  Place place = weight.place;
  place.tensor = TensorName::wgrad;
  const Series* gradient = facts.find(place, "nonfinite");
  const Point* last = gradient != nullptr ? gradient->before(first) : nullptr;
  if (last == nullptr || last->value > 0) return "";
  return fmt::format(
      "; its gradient was finite in iteration {}: an operation after the backward pass caused it "
      "({}, the optimizer step), or other code wrote to the weight",
      last->iteration, kAfterBackward);
}

// Returns a clause that states whether the operands of the GEMM were finite.
std::string describe_operands(const Facts& facts, const Place& place, std::int64_t iteration) {
  if (!place.gemm) return "it was not recorded whether its operands were finite";
  bool all = true;
  for (const TensorName tensor : kAllTensors) {
    if (!is_gemm_input(tensor) || !belongs_to(tensor, *place.gemm)) continue;
    all = all && was_finite(facts, place, tensor, iteration);
  }
  if (!all) return "it was not recorded whether its operands were finite";
  return *place.gemm == Gemm::fprop
             ? "its operands were finite, so the product or the bias is the origin"
             : "its operands were finite, so the product is the origin";
}

// Returns the next step: the code that may be the origin of this tensor, and how to find it.
std::string suggest_search(const Facts& facts, const Place& place, std::int64_t iteration) {
  switch (*place.tensor) {
    case TensorName::weight:
      return fmt::format(
          "find the code that wrote to the weight of '{{layer}}' before iteration {0}: a "
          "checkpoint, {1}, or the optimizer step; debug.watch_optimizer(optimizer, every=1) "
          "records lr, grad_norm and update_to_weight in each step; print the optimizer's state of "
          "this weight (exp_avg_sq) and its gradient after clipping; telens plot RUN --layer "
          "'{{layer}}' --tensor wgrad --stat cur_amax",
          iteration, kAfterBackward);
    case TensorName::activation: {
      const bool others = std::ranges::any_of(facts.with("nonfinite"), [&](const Series* each) {
        return each->place.tensor == TensorName::output && each->at(iteration);
      });
      return fmt::format(
          "the input of '{{layer}}' in iteration {0} comes from the code before it: the batch, a "
          "norm, an attention, an activation function{1}; to find it, add a forward hook that "
          "asserts torch.isfinite to each preceding module; telens stats RUN --iterations {0} "
          "--stat nonfinite --stat cur_amax",
          iteration, others ? "" : ", or a layer whose output was not recorded");
    }
    case TensorName::gradient:
      return fmt::format(
          "check the backward pass of iteration {0} between the loss and '{{layer}}': a rerun from "
          "the last checkpoint with torch.autograd.set_detect_anomaly(True) names the operation; a "
          "loss scale that is too large also causes this",
          iteration);
    default:
      return fmt::format(
          "telens stats RUN --iterations {0} --stat nonfinite --stat cur_amax --layer '{{layer}}'; "
          "{1}: in a rerun from the last checkpoint, configs/nan_hunt.yaml records the operands "
          "and the result of each GEMM, and telens replay recomputes it",
          iteration, describe_operands(facts, place, iteration));
  }
}

std::size_t count_nonfinite_places(const Facts& facts) {
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

std::string name_value(double value) { return std::isnan(value) ? "NaN" : "infinite"; }

// Returns "every recorded tensor of the forward pass is finite, up to head output", or "" if none
// was recorded in the iteration.
std::string describe_finite_pass(const Facts& facts, bool backward, std::int64_t iteration) {
  const Series* last = last_recorded(facts, backward, iteration);
  if (last == nullptr) return "";
  return fmt::format("every recorded tensor of the {} pass is finite, up to {} {}",
                     backward ? "backward" : "forward", facts.layer_name(last->place.layer),
                     telens::get_name(*last->place.tensor));
}

std::string suggest_loss_check(const Facts& facts, std::int64_t iteration) {
  const Series* last = last_recorded(facts, false, iteration);
  if (last == nullptr) {
    return fmt::format(
        "no tensor of iteration {} was recorded: record every iteration, with "
        "configs/flight_recorder.yaml without its budget",
        iteration);
  }
  return fmt::format(
      "check the code after '{}' in iteration {}: the loss function, its targets and their mask (a "
      "mean over no element is NaN), and modules that are not recorded",
      facts.layer_name(last->place.layer), iteration);
}

Finding make_loss_finding(const Facts& facts, const NonfiniteScalar& loss) {
  const std::int64_t iteration = loss.point.iteration;
  const std::string up_to = describe_finite_pass(facts, false, iteration);
  return {.cause = "nonfinite",
          .place = {.rank = loss.scalars->rank},
          .summary = fmt::format(
              "the loss itself is {}{}", name_value(loss.point.value),
              up_to.empty() ? "; no tensor of this iteration was recorded" : ", while " + up_to),
          .next_step = suggest_loss_check(facts, iteration)};
}

// Returns the weights that are not finite in the first record after the iteration. Adds the number
// of weights with such a record to `recorded`.
std::vector<const Series*> find_nonfinite_weights(const Facts& facts, std::int64_t iteration,
                                                  std::size_t& recorded) {
  std::vector<const Series*> bad;
  for (const Series* series : facts.with("nonfinite")) {
    if (series->place.tensor != TensorName::weight) continue;
    const auto next = std::ranges::upper_bound(series->points, iteration, {}, &Point::iteration);
    if (next == series->points.end()) continue;
    ++recorded;
    if (next->value > 0) bad.push_back(series);
  }
  return bad;
}

// Returns true if the scalar describes an update whose gradient norm is finite.
bool has_finite_gradients(const Facts& facts, const NonfiniteScalar& scalar) {
  if (scalar.moment != Moment::after_update) return false;
  const Scalars* norms = scalar_beside(facts, *scalar.scalars, "grad_norm");
  const auto norm = norms != nullptr ? value_at(*norms, scalar.point.iteration) : std::nullopt;
  return norm && std::isfinite(*norm);
}

// Describes the last finite value before an optimizer's scalar: grad_norm or the gradients.
std::string describe_last_finite(const Facts& facts, const NonfiniteScalar& scalar) {
  if (has_finite_gradients(facts, scalar)) {
    return "grad_norm is finite: the origin is the optimizer step, or a weight was not finite "
           "before it";
  }
  const std::string up_to = describe_finite_pass(facts, true, scalar.point.iteration);
  if (up_to.empty()) return "no gradient of this iteration was recorded";
  return up_to + ": the origin is after the backward pass or in a parameter that is not recorded";
}

Finding make_update_finding(const Facts& facts, const NonfiniteScalar& scalar) {
  const std::int64_t iteration = scalar.point.iteration;
  Finding finding{.cause = "nonfinite", .place = {.rank = scalar.scalars->rank}};
  finding.summary =
      fmt::format("{} is {}, while {}", scalar.scalars->name, name_value(scalar.point.value),
                  describe_last_finite(facts, scalar));
  std::size_t recorded = 0;
  const auto bad = find_nonfinite_weights(facts, iteration, recorded);
  if (!bad.empty() && (bad.size() < recorded || recorded == 1)) {
    const Series& weight = *bad.front();
    const auto next = std::ranges::upper_bound(weight.points, iteration, {}, &Point::iteration);
    finding.place = weight.place;
    finding.summary +=
        fmt::format("; in iteration {}, {:.0f} element{} of the weight {} not finite{}",
                    next->iteration, next->value, next->value == 1 ? "" : "s",
                    next->value == 1 ? "is" : "are", and_others(bad.size() - 1, "weight"));
    finding.evidence.push_back({"nonfinite", weight.place, next->iteration, next->value, ""});
  } else if (!bad.empty()) {
    finding.summary += fmt::format("; all {} weights are non-finite afterwards", bad.size());
  }
  if (has_finite_gradients(facts, scalar)) {
    finding.next_step =
        "check whether a weight was not finite before this step, then the arithmetic of the "
        "optimizer. If weights or optimizer state are FP16, Adam's eps = 1e-8 is 0 and squares of "
        "small gradients underflow, so it divides 0 by 0: keep FP32 copies of both";
    return finding;
  }
  finding.next_step = fmt::format(
      "check code that changes gradients between the backward pass and the optimizer's step of "
      "iteration {}: {}; print the names of the parameters whose .grad is not finite right before "
      "the step, including parameters that are not recorded (embeddings, norms, biases)",
      iteration, kAfterBackward);
  return finding;
}

Finding make_scalar_finding(const Facts& facts, const NonfiniteScalar& scalar) {
  Finding finding;
  switch (scalar.moment) {
    case Moment::loss:
      finding = make_loss_finding(facts, scalar);
      break;
    case Moment::before_update:
    case Moment::after_update:
      finding = make_update_finding(facts, scalar);
      break;
    case Moment::program:
      finding = {.cause = "nonfinite",
                 .place = {.rank = scalar.scalars->rank},
                 .summary = fmt::format("{} is {}, and no recorded tensor was non-finite before",
                                        scalar.scalars->name, name_value(scalar.point.value)),
                 .next_step = fmt::format("check how the program computes {} in iteration {}",
                                          scalar.scalars->name, scalar.point.iteration)};
      break;
  }
  finding.first = scalar.point.iteration;
  finding.last = scalar.scalars->points.back().iteration;
  finding.confidence = kProven;
  finding.evidence.insert(finding.evidence.begin(), {scalar.scalars->name,
                                                     {.rank = scalar.scalars->rank},
                                                     scalar.point.iteration,
                                                     scalar.point.value,
                                                     ""});
  return finding;
}

// Reports the non-finite loss as the origin of a non-finite gradient: autograd multiplies by it.
void add_nonfinite_loss(const Facts& facts, const NonfiniteScalar& loss, Finding& finding) {
  const Finding loss_finding = make_scalar_finding(facts, loss);
  finding.summary = fmt::format("{}; {}", loss_finding.summary, finding.summary);
  finding.next_step = loss_finding.next_step;
  finding.evidence.insert(finding.evidence.begin(), loss_finding.evidence.front());
}

std::vector<Finding> find_nonfinite(const Facts& facts) {
  const std::optional<NonfiniteScalar> scalar = find_nonfinite_scalar(facts);
  std::int64_t first = 0;
  const Series* origin = first_nonfinite(facts, first);
  if (origin == nullptr || (scalar && scalar->point.iteration < first)) {
    return scalar ? std::vector{make_scalar_finding(facts, *scalar)} : std::vector<Finding>();
  }
  Finding finding{.cause = "nonfinite",
                  .place = origin->place,
                  .first = first,
                  .last = origin->points.back().iteration,
                  .confidence = kProven};
  finding.place.gemm = get_producing_gemm(*origin);
  const double count = *origin->at(first);
  finding.summary = fmt::format("{:.0f} element{} not finite", count, count == 1 ? " is" : "s are");
  if (const std::size_t others = count_nonfinite_places(facts) - 1; others > 0) {
    finding.summary += fmt::format("; {} other tensor{} non-finite in the same iteration or later",
                                   others, others == 1 ? " becomes" : "s become");
  }
  if (*origin->place.tensor == TensorName::weight)
    finding.summary += describe_weight_origin(facts, *origin, first);
  finding.next_step = suggest_search(facts, finding.place, first);
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
  const bool after_loss = scalar && scalar->point.iteration == first &&
                          scalar->moment == Moment::loss && is_backward(origin->place);
  if (after_loss) add_nonfinite_loss(facts, *scalar, finding);
  return {finding};
}

}  // namespace

Rule nonfinite() {
  return {.cause = "nonfinite",
          .title = "NaN or Inf values",
          .doc =
              "The first tensor with a NaN or Inf, by iteration and then in the order of a "
              "training step: forward through the layers, loss, backward, optimizer step. "
              "Everything after it is a consequence. A scalar (loss, grad_norm, update_to_weight) "
              "that is not finite before any recorded tensor shows between which of these steps "
              "the problem began. It is reported even if no tensor was recorded.",
          .stage = Stage::values,
          .required = {"nonfinite"},
          .optional = {"nan", "posinf", "neginf", "cur_amax", "l2_norm"},
          .judges_scalars = true,
          .recorded_by = "LogTensorStats (any statistic), ValueHistogram",
          .alternatives =
              "With a loss scaler, occasional Inf gradients in skipped steps are normal and are "
              "ignored. If the preceding module is not a TELens module, the problem may have "
              "started there.",
          .next_step =
              "telens stats RUN --stat nonfinite --stat cur_amax --layer '{layer}'; in a rerun "
              "from the last checkpoint, configs/nan_hunt.yaml records the inputs and results of "
              "every GEMM, which show the origin",
          .find = find_nonfinite};
}

}  // namespace telens::analysis
