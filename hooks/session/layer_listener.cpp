#include "hooks/session/layer_listener.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "core/ops/capture.h"

namespace telens::debug {
namespace {

// A forward without an autograd graph does not require step(), and neither does a forward in eval
// mode, which may be an evaluation that builds a graph by mistake.
bool trains(const RoutingRequest& request) {
  return request.training_mode && !request.evaluation && at::GradMode::is_enabled();
}

bool could_be_captured(const RoutingRequest& request) {
  return request.like != nullptr && ops::has_graphs(request.like->device());
}

}  // namespace

void LayerListener::start(std::shared_ptr<void> owner) {
  const std::lock_guard lock(layers_mutex_);
  install(std::move(owner));
  first_number_ = jump_number_ = number_.load();
}

bool LayerListener::stop(std::chrono::milliseconds limit) {
  return hook_points::remove(this).wait_for_calls(limit);
}

// Repeated for every external change of the iteration: a sleeping layer wakes up in a session with
// a larger number.
void LayerListener::install(std::shared_ptr<void> owner) {
  number_ = hook_points::install(this, iteration(), std::move(owner));
}

void LayerListener::set_iteration(std::int64_t iteration) {
  const std::lock_guard lock(layers_mutex_);
  iteration_.store(iteration, std::memory_order_relaxed);
  install();
  jump_number_ = number_.load();
  missing_steps_.note_jump();
}

void LayerListener::end_iteration() {
  left_out_.warn(events_);
  const std::int64_t next = iteration() + 1;
  iteration_.store(next, std::memory_order_relaxed);
  hook_points::set_iteration(next);
  missing_steps_.note_step();
}

void LayerListener::wake() {
  const std::lock_guard lock(layers_mutex_);
  number_ = hook_points::renew(iteration());
}

std::vector<FeatureInstance*> LayerListener::all_for(LayerKind kind, std::string_view name) const {
  if (kind == LayerKind::linear) return features_.all_for(name);
  const auto names_attention = [](const auto& each) { return each->names_attention(); };
  if (std::ranges::none_of(features_.all(), names_attention)) return {};
  std::vector<FeatureInstance*> all = features_.all_for(name);
  std::erase_if(all, std::not_fn(names_attention));
  return all;
}

std::shared_ptr<LayerRouting> LayerListener::get_routing(LayerHooks& layer) {
  const std::lock_guard lock(layers_mutex_);
  const std::uint64_t number = number_;
  const auto known = std::static_pointer_cast<LayerRouting>(layer.state());
  if (known != nullptr && known->session() == number) return known;

  std::string name = layer.name();
  if (name.empty()) {
    LayerHooks::AutomaticName& automatic = layer.automatic_name();
    if (automatic.session < first_number_) {
      automatic = {number, layer.kind() == LayerKind::linear
                               ? fmt::format("Layer_{}", ++unnamed_layers_)
                               : fmt::format("Attention_{}", ++unnamed_attentions_)};
    }
    name = automatic.name + layer.automatic_suffix();
  }
  const std::vector<FeatureInstance*> all = all_for(layer.kind(), name);
  const std::vector<FeatureInstance*> features = FeatureSet::running(all);
  const bool is_watched = !features.empty();
  const bool grew = known != nullptr && known->session() >= jump_number_;
  auto routing = std::make_shared<LayerRouting>(number, std::move(name), layer.kind(), features,
                                                grew ? known.get() : nullptr);
  routing->set_observed(statistics_.layer(routing->layer_name()));
  if (features.size() < all.size()) routing->note_features_that_wait();
  if (known != nullptr && known->session() >= first_number_) {
    routing->set_presence(known->presence());
  } else if (layer.kind() == LayerKind::linear || !all.empty()) {
    LayerNameRegistry::Entered entered = names_.enter(routing->layer_name());
    routing->set_presence(std::move(entered.presence));
    if (entered.is_shared && is_watched) warn_of_shared_name(routing->layer_name());
  }
  // A call of an ended session leaves the state of the next session unchanged.
  if (known == nullptr || known->session() < number) layer.state() = routing;
  return routing;
}

void LayerListener::warn_of_shared_name(const std::string& name) {
  events_.message(
      "two layers have this name: what is recorded of them is of both together; give each a name "
      "of its own (name=, or infer_and_assign_layer_names of a list of models)",
      name, LogLevel::warning);
}

void LayerListener::note_script(std::string_view layer_name) {
  const std::lock_guard lock(layers_mutex_);
  names_.enter_script(layer_name);
}

bool LayerListener::any_ran() {
  const std::lock_guard lock(layers_mutex_);
  return names_.any();
}

std::vector<std::string> LayerListener::idle_sections(const config::Config& config) {
  const std::lock_guard lock(layers_mutex_);
  return names_.idle_sections(config);
}

RoutingPlan LayerListener::route(LayerHooks& layer, const RoutingRequest& request) {
  SharedCost cost(features_.sections().measures());
  const std::shared_ptr<LayerRouting> shared = get_routing(layer);
  LayerRouting& routing = *shared;
  const std::int64_t now = iteration();
  const bool captured = request.like != nullptr && ops::is_capturing(*request.like);
  if (!captured && could_be_captured(request) && routing.claim_graph_memory()) {
    statistics_.prepare_for_graphs(routing.layer_name(), request.like->device());
  }
  RoutingPlan plan = captured ? captured_plan(routing, request) : asked_plan(routing, request);
  for (const PlanAnswers::Part& part : PlanAnswers::of(plan).parts) {
    if (part.on() && !captured) cost.add(part.feature->section->budget());
  }
  if (plan.empty() && !captured) let_sleep(layer, routing, request);
  if (PlanAnswers::of(plan).left_out && !*routing.has_trained()) left_out_.note(routing);
  if (layer.kind() == LayerKind::attention) return plan;
  log_plan(routing, plan, request.under_recipe);
  if (trains(request)) {
    const auto text = missing_steps_.note_forward(routing, now);
    if (text) events_.message(*text, {}, LogLevel::warning);
  }
  return plan;
}

RoutingPlan LayerListener::asked_plan(LayerRouting& routing, const RoutingRequest& request) {
  const auto& features = routing.features();
  std::optional<RandomState> random;
  if (std::ranges::any_of(features, &FeatureInstance::is_foreign)) {
    random.emplace(request.like != nullptr ? std::optional(request.like->device()) : std::nullopt);
  }
  RoutingPlan plan = routing.route(iteration(), request, switch_off_);
  if (random && random->restore()) {
    for (FeatureInstance* each : features) {
      if (!each->is_foreign()) continue;
      isolation_.tell_of_randomness(*each, routing.layer_name(), "routing calls");
    }
  }
  return plan;
}

RoutingPlan LayerListener::captured_plan(const LayerRouting& routing,
                                         const RoutingRequest& request) {
  LayerRouting of_all(routing.session(), routing.layer_name(), routing.kind(),
                      all_for(routing.kind(), routing.layer_name()), &routing);
  return of_all.route_captured(iteration(), request, switch_off_);
}

void LayerListener::let_sleep(LayerHooks& layer, const LayerRouting& routing,
                              const RoutingRequest& request) {
  const auto wake = routing.sleep_until(iteration(), request.under_recipe);
  if (!wake) return;
  const bool ever = *wake <= hook_points::kLastIteration;
  // Uses the number that the layer was routed under: another thread may have woken all layers
  // meanwhile.
  const std::uint64_t number = routing.session();
  const std::uint64_t tick =
      ever ? hook_points::make_tick(number, *wake) : hook_points::make_tick(number + 1, 0);
  // A graph would have to contain calls that are due later, or whose section has not begun.
  const bool wanted_in_graphs = ever || routing.has_features_that_wait();
  if (wanted_in_graphs && could_be_captured(request)) {
    layer.doze_until(tick, request);
  } else {
    layer.sleep_until(tick, request);
  }
}

// Writes one message for each input of every GEMM: how the input is produced.
void LayerListener::log_plan(LayerRouting& routing, const RoutingPlan& plan, bool under_recipe) {
  enum Kind { quantize, high_precision, modify, kKinds };
  static constexpr std::array<std::string_view, kKinds> kTexts{"Quantize", "High Precision",
                                                               "modify_tensor()"};
  if (plan.empty()) return;
  std::uint32_t pair = 0;
  for (const Gemm gemm : kAllGemms) {
    for (const TensorName tensor : kAllTensors) {
      if (!is_gemm_input(tensor) || !belongs_to(tensor, gemm)) continue;
      const bool high = !under_recipe || plan.runs_in_high_precision(gemm);
      const Kind kind = plan.modifies(gemm, tensor) ? modify : high ? high_precision : quantize;
      if (!routing.claim_messages(1U << (pair++ * kKinds + kind))) continue;
      events_.log(fmt::format("Tensor: {}, gemm {} - {}", telens::get_name(tensor),
                              telens::get_name(gemm), kTexts[kind]),
                  routing.layer_name(), LogLevel::info);
    }
  }
}

std::optional<bool> LayerListener::may_watch_wgrad(LayerHooks& layer) {
  const auto may_watch = [](const auto& each) { return each->feature->may_watch_wgrad(); };
  if (std::ranges::none_of(features_.all(), may_watch)) return false;
  const std::lock_guard lock(layers_mutex_);
  std::string name = layer.name();
  if (name.empty()) {
    const LayerHooks::AutomaticName& automatic = layer.automatic_name();
    if (automatic.session < first_number_) return std::nullopt;
    name = automatic.name + layer.automatic_suffix();
  }
  return std::ranges::any_of(features_.all_for(name), may_watch);
}

}  // namespace telens::debug
