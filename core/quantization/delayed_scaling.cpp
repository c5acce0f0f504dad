#include "core/quantization/delayed_scaling.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/distributed/warn_once.h"
#include "core/formats/dispatch.h"
#include "core/ops/quantize.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/recipe.h"

namespace telens {
namespace {

std::int64_t slots_of_gemm(bool backward) { return backward ? kBackwardRoles : kForwardRoles; }

AmaxWindow make_window(std::int64_t length, std::int64_t slots, const at::Device& device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  return {at::zeros({length, slots}, options), at::ones({slots}, options)};
}

// Returns the newest rows of a history in one of another length.
at::Tensor resized_history(const at::Tensor& history, std::int64_t length) {
  at::Tensor resized = at::zeros({length, history.size(1)}, history.options());
  const std::int64_t kept = std::min(length, history.size(0));
  resized.narrow(0, 0, kept).copy_(history.narrow(0, 0, kept));
  return resized;
}

// All tensors of a direction have the same format.
float largest_value(const Recipe& recipe, bool backward) {
  const TensorRole role = backward ? TensorRole::grad_output : TensorRole::input;
  return dispatch_fp8_format(recipe.get_format(role), "delayed scaling",
                             []<typename Format>() { return Format::kMax; });
}

std::string_view describe_layer(std::string_view name) {
  return name.empty() ? "a layer without a name" : name;
}

bool has_user_functions(const DelayedScaling& recipe) {
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

void check_result(const at::Tensor& result, std::string_view function, const at::Tensor& scale,
                  std::string_view layer) {
  if (result.defined() && result.sizes() == scale.sizes()) return;
  raise<ShapeError>(
      "DelayedScaling: {} returned a tensor of shape {} for {}; expected [{}], one value for each "
      "slot",
      function, result.defined() ? fmt::format("[{}]", fmt::join(result.sizes(), ", ")) : "none",
      describe_layer(layer), scale.numel());
}

// Returns the fault of a scale, or "" if it is valid. The text has no number, so that warn_once()
// shows it once for each tensor.
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

void ModuleWindows::prepare(std::int64_t length, const at::Device& device) {
  for (const bool backward : {false, true}) {
    AmaxWindow& window = joined_[backward ? 1 : 0];
    if (!window.defined()) {
      window = make_window(length, gemms_ * slots_of_gemm(backward), device);
    } else if (window.amax_history.size(0) != length) {
      window.amax_history = resized_history(window.amax_history, length);
    }
    if (window.scale.device() != device) {
      window.amax_history = window.amax_history.to(device);
      window.scale = window.scale.to(device);
    }
  }
}

void ModuleWindows::view(bool backward, std::int64_t gemm, AmaxWindow& window) const {
  const AmaxWindow& all = joined(backward);
  const std::int64_t slots = slots_of_gemm(backward);
  window.amax_history = all.amax_history.narrow(1, gemm * slots, slots);
  window.scale = all.scale.narrow(0, gemm * slots, slots);
}

void DelayedScalingState::prepare(const DelayedScaling& recipe, const at::Device& device) {
  if (recipe.amax_history_len < 1) {
    raise<UsageError>("DelayedScaling: amax_history_len is {}; expected at least 1",
                      recipe.amax_history_len);
  }
  if (recipe.interval < 1) {
    raise<UsageError>("DelayedScaling: interval is {}; expected at least 1", recipe.interval);
  }
  module_->prepare(recipe.amax_history_len, device);
  take_views();
}

void DelayedScalingState::take_views() {
  for (const bool backward : {false, true}) module_->view(backward, gemm_, window(backward));
}

void DelayedScalingState::assign(const DelayedScalingState& other) {
  windows_ = {};
  const AmaxWindow& given = other.window(false);
  if (!given.defined() && module_->gemms() == 1) module_->forget();
  if (!given.defined() && !module_->joined(false).defined()) return;
  if (given.defined()) {
    const AmaxWindow& present = module_->joined(false);
    module_->prepare(given.amax_history.size(0),
                     present.defined() ? present.scale.device() : given.scale.device());
  }
  take_views();
  for (const bool backward : {false, true}) {
    const AmaxWindow& from = other.window(backward);
    if (from.defined()) {
      window(backward).scale.copy_(from.scale);
      window(backward).amax_history.copy_(from.amax_history);
      window(backward).updates->store(from.updates->load());
      window(backward).rows_since_update = from.rows_since_update;
    } else {
      window(backward).scale.fill_(1);
      window(backward).amax_history.zero_();
      window(backward).rows_since_update = 0;
    }
  }
  if (!given.defined()) windows_ = {};
}

at::Tensor DelayedScalingState::scale(TensorRole role) const {
  return window(is_backward(role)).scale.narrow(0, slot(role), 1);
}

at::Tensor DelayedScalingState::running_amax(TensorRole role) const {
  return window(is_backward(role)).amax_history.select(0, 0).narrow(0, slot(role), 1);
}

DelayedScalingQuantizer::DelayedScalingQuantizer(FormatId format, at::Tensor scale, at::Tensor amax,
                                                 Usage usage, Updates updates)
    : Quantizer(format, usage),
      scale_(std::move(scale)),
      amax_(std::move(amax)),
      updates_(std::move(updates)) {}

QuantizedTensor DelayedScalingQuantizer::quantize(const at::Tensor& x, Usage usage) const {
  return quantize_with_scale(x, {scale_, amax_, format()}, usage);
}

void DelayedScalingQuantizer::quantize_into(const at::Tensor& x, QuantizedTensor& out) const {
  quantize_with_scale_into(x, {scale_, amax_, format()}, out);
}

void DelayedScalingQuantizer::calibrate(const at::Tensor& x) const {
  if (amax_.defined()) {
    amax_.copy_(at::maximum(amax_, ops::amax(x)));  // maximum propagates NaN
  }
}

std::optional<std::int64_t> DelayedScalingQuantizer::history_updates() const {
  if (!updates_) return std::nullopt;
  return updates_->load(std::memory_order_relaxed);
}

std::shared_ptr<Quantizer> DelayedScalingQuantizer::copy() const {
  return std::make_shared<DelayedScalingQuantizer>(*this);
}

bool DelayedScalingQuantizer::quantizes_as(const Quantizer& other) const {
  if (!Quantizer::quantizes_as(other)) return false;
  const auto& same = static_cast<const DelayedScalingQuantizer&>(other);
  const bool follow_histories = updates_ && same.updates_;
  return follow_histories || scale_.is_alias_of(same.scale_);
}

std::shared_ptr<Quantizer> DelayedScalingQuantizer::frozen_at(at::Tensor scale) const {
  auto frozen = std::make_shared<DelayedScalingQuantizer>(format(), std::move(scale), at::Tensor(),
                                                          usage(), updates_);
  frozen->reduce_amax_over(amax_reduction_group());  // for features that compute a scale
  return frozen;
}

std::shared_ptr<Quantizer> DelayedScaling::make_quantizer(TensorRole role,
                                                          DelayedScalingState* state) const {
  if (state == nullptr) {
    raise<UsageError>("DelayedScaling: a quantizer needs a layer's amax history");
  }
  return std::make_shared<DelayedScalingQuantizer>(get_format(role), state->scale(role),
                                                   state->running_amax(role), Usage{},
                                                   state->window(is_backward(role)).updates);
}

// The functions receive copies, which they may modify.
WindowUpdates::UserScale WindowUpdates::user_scale(AmaxWindow& window, const DelayedScaling& recipe,
                                                   bool backward, std::string_view layer) {
  const auto* function = std::get_if<DelayedScaling::AmaxFunction>(&recipe.amax_compute_algo);
  const ops::WindowFormula formula = get_formula(recipe);
  at::Tensor amax;
  if (function != nullptr) {
    amax = (*function)(window.amax_history.clone());
    check_result(amax, "amax_compute_algo", window.scale, layer);
    amax = amax.to(at::kFloat).contiguous();
  } else {
    amax = ops::amax_of_history(window.amax_history, formula.algorithm);
  }
  const at::Tensor maxima = at::full_like(window.scale, largest_value(recipe, backward));
  at::Tensor scale = window.scale.clone();
  if (recipe.scaling_factor_compute_algo) {
    const at::Tensor made =
        recipe.scaling_factor_compute_algo(amax.clone(), window.scale.clone(), maxima);
    check_result(made, "scaling_factor_compute_algo", window.scale, layer);
    scale.copy_(made);
  } else {
    ops::update_scale(amax, scale, maxima, formula.margin, formula.power_of_two);
  }
  return {.window = &window,
          .layer = layer,
          .amax = amax,
          .scale = scale,
          .backward = backward,
          .has_scale_function = static_cast<bool>(recipe.scaling_factor_compute_algo)};
}

void WindowUpdates::add(AmaxWindow& window, const DelayedScaling& recipe, bool backward,
                        std::string_view layer) {
  if (!window.defined()) return;
  if (window.rows_since_update + 1 < recipe.interval) {
    waiting_.push_back(&window);
    return;
  }
  if (has_user_functions(recipe)) {
    user_scales_.push_back(user_scale(window, recipe, backward, layer));
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

// Copies the scales in all windows to the host at once: one device synchronization.
void WindowUpdates::warn_of_bad_scales() const {
  if (user_scales_.empty()) return;
  const at::Device device = user_scales_.front().scale.device();
  std::vector<at::Tensor> scales;
  for (const UserScale& each : user_scales_) {
    // A slot with the amax 0 is unused: its scale counts as a good one.
    scales.push_back(each.scale.masked_fill(at::eq(each.amax, 0), 1).to(device));
  }
  const at::Tensor host = at::cat(scales).cpu();
  const float* scale = host.const_data_ptr<float>();
  for (const UserScale& each : user_scales_) {
    for (std::int64_t slot = 0; slot < each.scale.numel(); ++slot, ++scale) {
      const std::string_view fault = fault_of_scale(*scale);
      if (fault.empty()) continue;
      warn_once(fmt::format("DelayedScaling: {} a scale that is {} for the tensor {} of {}; "
                            "expected a finite number above 0. Its FP8 values are meaningless with "
                            "this scale",
                            each.has_scale_function ? "scaling_factor_compute_algo returned"
                                                    : "the result of amax_compute_algo gives",
                            fault, get_name(role_of_slot(slot, each.backward)),
                            describe_layer(each.layer)),
                ShownBy::this_rank);
    }
  }
}

void WindowUpdates::run() {
  warn_of_bad_scales();
  for (const Group& group : groups_) ops::update_windows(group.windows, group.formula);
  for (const UserScale& user : user_scales_) {
    user.window->scale.copy_(user.scale);
    ops::advance_history(user.window->amax_history);
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
