#include "core/quantization/window_updates.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/distributed/warn_once.h"
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

void check_result(const at::Tensor& result, std::string_view name, const at::Tensor& scale) {
  if (result.defined() && result.sizes() == scale.sizes()) return;
  raise<ShapeError>(
      "DelayedScaling: {} returned a tensor of shape {}; expected [{}], one value for each slot",
      name, result.defined() ? fmt::format("[{}]", fmt::join(result.sizes(), ", ")) : "none",
      scale.numel());
}

// What is wrong with a scale; empty if nothing is. Few texts, since each is shown once.
std::string_view fault_of_scale(float scale) {
  if (std::isnan(scale)) return "NaN";
  if (std::isinf(scale)) return "infinite";
  if (scale == 0) return "0";
  return scale < 0 ? "negative" : "";
}

TensorRole role_of_slot(std::int64_t slot, bool backward) {
  return static_cast<TensorRole>(slot + (backward ? kForwardRoles : 0));
}

}  // namespace

// The functions get copies, which they may change.
WindowUpdates::OwnScale WindowUpdates::own_scale(AmaxWindow& window, const DelayedScaling& recipe,
                                                 bool backward) {
  const auto* function = std::get_if<DelayedScaling::AmaxFunction>(&recipe.amax_compute_algo);
  const ops::WindowFormula formula = get_formula(recipe);
  at::Tensor amax;
  if (function != nullptr) {
    amax = (*function)(window.amax_history.clone());
    check_result(amax, "amax_compute_algo", window.scale);
    amax = amax.to(at::kFloat).contiguous();
  } else {
    amax = ops::amax_of_history(window.amax_history, formula.algorithm);
  }
  const at::Tensor maxima = at::full_like(window.scale, largest_value(recipe, backward));
  at::Tensor scale = window.scale.clone();
  if (recipe.scaling_factor_compute_algo) {
    const at::Tensor made =
        recipe.scaling_factor_compute_algo(amax.clone(), window.scale.clone(), maxima);
    check_result(made, "scaling_factor_compute_algo", window.scale);
    scale.copy_(made);
  } else {
    ops::update_scale(amax, scale, maxima, formula.margin, formula.power_of_two);
  }
  return {.window = &window,
          .amax = amax,
          .scale = scale,
          .backward = backward,
          .has_scale_function = static_cast<bool>(recipe.scaling_factor_compute_algo)};
}

void WindowUpdates::add(AmaxWindow& window, const DelayedScaling& recipe, bool backward) {
  if (!window.defined()) return;
  if (window.rows_since_update + 1 < recipe.interval) {
    waiting_.push_back(&window);
    return;
  }
  if (has_own_functions(recipe)) {
    own_scales_.push_back(own_scale(window, recipe, backward));
  } else {
    find_group(get_formula(recipe), window.scale.device())
        .add(window, largest_value(recipe, backward));
  }
  updated_.push_back(&window);
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

// Copies the scales of all windows to the host at once: one device synchronization.
void WindowUpdates::warn_of_bad_scales() const {
  if (own_scales_.empty()) return;
  const at::Device device = own_scales_.front().scale.device();
  std::vector<at::Tensor> scales;
  for (const OwnScale& each : own_scales_) {
    // A slot with the amax 0 is unused: its scale counts as a good one.
    scales.push_back(each.scale.masked_fill(at::eq(each.amax, 0), 1).to(device));
  }
  const at::Tensor host = at::cat(scales).cpu();
  const float* scale = host.const_data_ptr<float>();
  for (const OwnScale& each : own_scales_) {
    for (std::int64_t slot = 0; slot < each.scale.numel(); ++slot, ++scale) {
      const std::string_view fault = fault_of_scale(*scale);
      if (fault.empty()) continue;
      warn_once(fmt::format("DelayedScaling: {} a scale that is {} for the tensor {} of a layer; "
                            "expected a finite number above 0. Its FP8 values are meaningless with "
                            "this scale",
                            each.has_scale_function ? "scaling_factor_compute_algo returned"
                                                    : "the result of amax_compute_algo gives",
                            fault, get_name(role_of_slot(slot, each.backward))),
                ShownBy::this_rank);
    }
  }
}

void WindowUpdates::run() {
  warn_of_bad_scales();
  for (const Group& group : groups_) ops::update_windows(group.windows, group.formula);
  for (const OwnScale& own : own_scales_) {
    own.window->scale.copy_(own.scale);
    ops::advance_history(own.window->amax_history);
  }
  for (AmaxWindow* window : updated_) {
    window->updates->fetch_add(1, std::memory_order_relaxed);
    window->rows_since_update = 0;
  }
  for (AmaxWindow* window : waiting_) {
    ops::advance_history(window->amax_history);
    ++window->rows_since_update;
  }
  *this = {};
}

}  // namespace telens
