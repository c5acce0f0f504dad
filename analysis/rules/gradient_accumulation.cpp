#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "analysis/rules/received_gradients.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr double kMaxDeviation = 0.1;    // relative; BF16 gradients show the factor to 2 %
constexpr double kMinSharingPart = 0.2;  // share of the gradients that have the common factor
constexpr std::size_t kMinSharing = 3;   // gradients

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

std::vector<Finding> find_gradient_accumulation(const Facts& facts) {
  std::map<std::int32_t, MeasuredLayer> layers;
  std::int64_t last = 0;
  for (const ReceivedGradients& step : received_gradients(facts)) {
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
          "from the first step on.",
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
