#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "analysis/rules/received_gradients.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr double kMaxDeviation = 0.1;    // relative; BF16 gradients show the factor to 2 %
constexpr double kMinSharingPart = 0.2;  // share of the gradients that have the common factor
constexpr std::size_t kMinSharing = 3;   // gradients
constexpr std::size_t kMinSteps = 2;     // in which gradients are cleared or kept
constexpr double kMinSumShare = 0.7;     // share of the gradients; a sum can cancel

bool deviates(const ReceivedGradient& gradient, const ReceivedGradients& step) {
  return std::abs(gradient.factor - step.common) > kMaxDeviation * std::abs(step.common);
}

// The steps in which a layer was measured and in which its gradient deviated.
struct MeasuredLayer {
  std::size_t measured = 0;
  std::size_t deviating = 0;
  std::int64_t first = 0;          // iteration of the first deviation
  ReceivedGradient gradient = {};  // in `first`
  double common = 0;               // in `first`
};

bool has_common_factor(const ReceivedGradients& step) {
  return step.sharing >= kMinSharing &&
         static_cast<double>(step.sharing) >
             kMinSharingPart * static_cast<double>(step.gradients.size());
}

// Finds weights whose gradients are counted wrong in comparison with the other weights.
std::vector<Finding> find_deviating_layers(const std::vector<ReceivedGradients>& steps) {
  std::map<std::int32_t, MeasuredLayer> layers;
  std::int64_t last = 0;
  for (const ReceivedGradients& step : steps) {
    if (!has_common_factor(step)) continue;
    last = step.iteration;
    for (const ReceivedGradient& gradient : step.gradients) {
      MeasuredLayer& layer = layers[gradient.place.layer];
      ++layer.measured;
      if (!deviates(gradient, step)) continue;
      if (layer.deviating++ > 0) continue;
      layer.first = step.iteration;
      layer.gradient = gradient;
      layer.common = step.common;
    }
  }
  // Require a deviation in most measured steps: a single one can result from elements that cancel.
  std::vector<const MeasuredLayer*> wrong;
  for (const auto& [id, layer] : layers) {
    if (layer.deviating > 0 && 2 * layer.deviating > layer.measured) wrong.push_back(&layer);
  }
  if (wrong.empty()) return {};
  const auto origin = std::ranges::min_element(wrong, {}, [](const MeasuredLayer* layer) {
    return std::pair(layer->first, get_order_in_step(layer->gradient.place));
  });
  const MeasuredLayer& layer = **origin;
  const double ratio = layer.gradient.factor / layer.common;
  return {{.cause = "gradient_accumulation",
           .place = layer.gradient.place,
           .first = layer.first,
           .last = last,
           .confidence = kProven,
           .summary = fmt::format(
               "the optimizer receives {:.3g} times the sum of the gradients that {} backward {} "
               "computed for the weight, relative to the other weights{}",
               ratio, layer.gradient.passes, layer.gradient.passes == 1 ? "pass" : "passes",
               and_others(wrong.size() - 1, "layer")),
           .evidence = {{"received / computed", layer.gradient.place, layer.first,
                         layer.gradient.factor, ""},
                        {"received / computed", {}, layer.first, layer.common, "usual"}}}};
}

// Returns true if the optimizer received zeros for all weights whose backward pass computed nonzero
// gradients. Requires several of them.
bool receives_zeros(const Facts& facts, std::int64_t iteration) {
  std::size_t nonzero = 0;
  for (const Series* received : facts.with("accumulated_norm")) {
    const auto norm = received->at(iteration);
    const Series* computed = facts.beside(*received, "l2_norm");
    const auto size = computed != nullptr ? computed->at(iteration) : std::nullopt;
    if (!norm || !size || !(*size > 0)) continue;
    if (*norm != 0) return false;
    ++nonzero;
  }
  return nonzero >= kMinSharing;
}

// Finds a zero_grad() between backward() and step(): the optimizer always receives zeros.
std::optional<Finding> find_cleared_gradients(const Facts& facts) {
  const auto measured = measured_iterations(facts);
  const bool always = std::ranges::all_of(
      measured, [&](std::int64_t iteration) { return receives_zeros(facts, iteration); });
  if (measured.size() < kMinSteps || !always) return std::nullopt;
  const std::int64_t first = *measured.begin();
  const auto is_computed = [&](const Series* received) {
    const Series* computed = facts.beside(*received, "l2_norm");
    return computed != nullptr && computed->at(first).value_or(0) > 0;
  };
  const auto norms = facts.with("accumulated_norm");
  const Series& received = **std::ranges::find_if(norms, is_computed);
  return Finding{
      .cause = "gradient_accumulation",
      .place = {.rank = received.place.rank},
      .first = first,
      .last = *measured.rbegin(),
      .confidence = kProven,
      .summary =
          "the optimizer receives gradients of 0 for all weights, although the backward "
          "passes computed nonzero gradients",
      .evidence = {{"accumulated_norm", received.place, first, 0, "received"},
                   {"l2_norm", received.place, first, *facts.beside(received, "l2_norm")->at(first),
                    "computed"}},
      .next_step = "call zero_grad() before backward() or after step(), not between them"};
}

// The sums of a weight's gradients from the first iteration on: means, times the number of backward
// passes. Ends at the first iteration without a record.
using GradientSums = std::map<std::int64_t, double>;  // by iteration

GradientSums sum_gradients(const Facts& facts, const Place& wgrad) {
  Place weight = wgrad;
  weight.tensor = TensorName::weight;
  const Series* elements = facts.find(weight, "numel");
  const Series* means = facts.find(wgrad, "mean");
  const Series* counts = facts.find(wgrad, "numel");
  if (elements == nullptr || elements->points.empty() || means == nullptr || counts == nullptr) {
    return {};
  }
  const double size = elements->points.front().value;
  GradientSums sums;
  double sum = 0;
  std::int64_t next = facts.first_iteration();
  for (const Point& mean : means->points) {
    const auto count = counts->at(mean.iteration);
    if (mean.iteration != next++ || !count || !std::isfinite(mean.value)) break;
    sum += mean.value * *count / size;
    sums.emplace_hint(sums.end(), mean.iteration, sum);
  }
  return sums;
}

// Returns true if the gradients that the optimizer received are the sums of all gradients since the
// first iteration. `sums` has an entry for each gradient of the step.
bool receives_all_gradients(const Facts& facts, const ReceivedGradients& step,
                            const std::map<std::int32_t, GradientSums>& sums) {
  std::size_t matching = 0, compared = 0;
  for (const ReceivedGradient& gradient : step.gradients) {
    const GradientSums& of_layer = sums.at(gradient.place.layer);
    const auto sum = of_layer.find(step.iteration);
    if (sum == of_layer.end() || sum->second == 0) continue;
    ++compared;
    const Series* received = facts.find(gradient.place, "accumulated_mean");
    const double factor = received->at(step.iteration).value_or(0) / sum->second;
    const bool is_sum = std::abs(factor - 1) <= kMaxDeviation;
    if (is_sum && std::abs(gradient.factor - 1) > kMaxDeviation) ++matching;
  }
  return matching >= kMinSharing &&
         static_cast<double>(matching) >= kMinSumShare * static_cast<double>(compared);
}

// Finds a missing zero_grad(): each step also receives the gradients of all earlier steps.
std::optional<Finding> find_kept_gradients(const Facts& facts,
                                           const std::vector<ReceivedGradients>& steps) {
  std::map<std::int32_t, GradientSums> sums;
  for (const ReceivedGradients& step : steps) {
    for (const ReceivedGradient& gradient : step.gradients) {
      const std::int32_t layer = gradient.place.layer;
      if (!sums.contains(layer)) sums.emplace(layer, sum_gradients(facts, gradient.place));
    }
  }
  std::vector<ReceivedGradients> found;
  for (const ReceivedGradients& step : steps) {
    if (step.iteration == facts.first_iteration()) continue;
    if (receives_all_gradients(facts, step, sums)) found.push_back(step);
  }
  if (found.size() < kMinSteps) return std::nullopt;
  const ReceivedGradients& first = found.front();
  const ReceivedGradient& gradient = first.gradients.front();
  return Finding{
      .cause = "gradient_accumulation",
      .place = {.rank = gradient.place.rank},
      .first = facts.first_iteration() + 1,
      .last = found.back().iteration,
      .confidence = kProven,
      .summary =
          "the optimizer receives the sum of the gradients of all steps so far: they are not "
          "cleared between the steps",
      .evidence = {{"received / computed", gradient.place, first.iteration, gradient.factor, ""}},
      .next_step =
          "call zero_grad() of the optimizer after each step; check that it contains the "
          "parameters of the model"};
}

std::vector<Finding> find_gradient_accumulation(const Facts& facts) {
  if (facts.ranks() > 1) return {};
  if (auto cleared = find_cleared_gradients(facts)) return {std::move(*cleared)};
  const std::vector<ReceivedGradients> steps = received_gradients(facts);
  if (auto kept = find_kept_gradients(facts, steps)) return {std::move(*kept)};
  return find_deviating_layers(steps);
}

}  // namespace

Rule gradient_accumulation() {
  return {
      .cause = "gradient_accumulation",
      .title = "gradients accumulated incorrectly",
      .doc =
          "The gradient that the optimizer receives must be the sum of the gradients of all "
          "backward passes of the step, times one factor for all weights (loss scale, clipping, "
          "averaging). The rule compares means, which are linear. Reported: a weight whose factor "
          "differs by 10 % or more from the factor that other weights share within 5 %, as if "
          "micro-batches were counted twice, lost or scaled. Weights that several layers share, "
          "gradients whose elements cancel and runs with several ranks are not checked. Visible "
          "from the first step on. Also reported: gradients of 0 in all measured steps although "
          "the backward passes computed nonzero ones (zero_grad() before step()), and gradients "
          "that are "
          "the sums over all steps so far (no zero_grad(); requires the gradients of each "
          "iteration and no clipping).",
      .stage = Stage::setup,
      .required = {"accumulated_mean", "mean"},
      .optional = {"accumulated_norm", "numel", "l2_norm", "std"},
      .needs_optimizer = true,
      .recorded_by = "telens.watch",
      .alternatives =
          "A hook that scales the gradient of some weights on purpose; a weight that is also used "
          "outside of its layer.",
      .next_step =
          "compare weight.grad of '{layer}' after one backward pass and after all micro-batches "
          "with the sum of torch.autograd.grad; look for in-place changes to .grad and main_grad, "
          "and for buffers that are reduced in each micro-batch",
      .find = find_gradient_accumulation};
}

}  // namespace telens::analysis
