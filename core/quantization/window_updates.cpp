#include "core/quantization/window_updates.h"

#include <ATen/ops/full_like.h>

#include <algorithm>
#include <utility>

#include "core/formats/dispatch.h"

namespace telens {
namespace {

// All tensors of one direction have one format.
float largest_value(const Recipe& recipe, bool backward) {
  const TensorRole role = backward ? TensorRole::grad_output : TensorRole::input;
  return dispatch_fp8_format(recipe.get_format(role), "delayed scaling",
                             []<typename Format>() { return Format::kMax; });
}

bool has_own_functions(const DelayedScaling& recipe) {
  return recipe.scaling_factor_compute_algo ||
         std::holds_alternative<DelayedScaling::AmaxFunction>(recipe.amax_compute_algo);
}

ops::WindowFormula get_formula(const DelayedScaling& recipe) {
  const auto* algorithm = std::get_if<AmaxAlgorithm>(&recipe.amax_compute_algo);
  const bool newest = algorithm != nullptr && *algorithm == AmaxAlgorithm::most_recent;
  return {.algorithm = newest ? "most_recent" : "max",
          .margin = recipe.margin,
          .power_of_two = recipe.power_of_2_scale};
}

// The scale by the user's functions, which may do what they like with what they get.
at::Tensor scale_by_own_functions(const AmaxWindow& window, const DelayedScaling& recipe,
                                  float fp8_max) {
  const auto* function = std::get_if<DelayedScaling::AmaxFunction>(&recipe.amax_compute_algo);
  const ops::WindowFormula formula = get_formula(recipe);
  const at::Tensor amax = function != nullptr
                              ? (*function)(window.amax_history.clone()).to(at::kFloat).contiguous()
                              : ops::amax_of_history(window.amax_history, formula.algorithm);
  const at::Tensor maxima = at::full_like(window.scale, fp8_max);
  at::Tensor scale = window.scale.clone();
  if (recipe.scaling_factor_compute_algo) {
    scale.copy_(recipe.scaling_factor_compute_algo(amax, window.scale.clone(), maxima));
  } else {
    ops::update_scale(amax, scale, maxima, formula.margin, formula.power_of_two);
  }
  return scale;
}

}  // namespace

void WindowUpdates::add(AmaxWindow& window, const DelayedScaling& recipe, bool backward) {
  if (!window.defined()) return;
  const float fp8_max = largest_value(recipe, backward);
  if (has_own_functions(recipe)) {
    own_scales_.push_back({&window, scale_by_own_functions(window, recipe, fp8_max)});
  } else {
    find_group(get_formula(recipe), window.scale.device()).add(window, fp8_max);
  }
  windows_.push_back(&window);
}

void WindowUpdates::Group::add(const AmaxWindow& window, float fp8_max) {
  windows.amax_histories.push_back(window.amax_history);
  windows.scales.push_back(window.scale);
  windows.fp8_max.push_back(fp8_max);
}

WindowUpdates::Group& WindowUpdates::find_group(const ops::WindowFormula& formula,
                                                const at::Device& device) {
  const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) {
    return group.formula == formula && group.device == device;
  });
  if (found != groups_.end()) return *found;
  return groups_.emplace_back(Group{.formula = formula, .device = device, .windows = {}});
}

void WindowUpdates::run() {
  for (const Group& group : groups_) ops::update_windows(group.windows, group.formula);
  for (const auto& [window, scale] : own_scales_) {
    window->scale.copy_(scale);
    ops::advance_history(window->amax_history);
  }
  for (const AmaxWindow* window : windows_) {
    window->updates->fetch_add(1, std::memory_order_relaxed);
  }
  *this = {};
}

}  // namespace telens
