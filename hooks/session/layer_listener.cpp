#include "hooks/session/layer_listener.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "hooks/tensor_ops.h"

namespace telens::debug {

void WarmUpNotes::note(std::string_view layer_name, std::int64_t iteration) {
  {
    const std::lock_guard lock(mutex_);
    auto found = noted_.find(layer_name);
    if (found == noted_.end()) found = noted_.try_emplace(std::string(layer_name)).first;
    Noted& noted = found->second;
    if (noted.iteration == iteration || noted.times == kMost) return;
    noted = {iteration, noted.times + 1};
  }
  events_.mark(iteration, "warm_up", "delayed scaling has no amax history yet: the scale is 1",
               layer_name);
}

void LeftOutLayers::note(const LayerRouting& routing) {
  const std::lock_guard lock(mutex_);
  layers_.emplace(routing.layer_name(), routing.has_trained());
}

void LeftOutLayers::warn(EventLog& events) {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, has_trained] : layers_) {
      if (!*has_trained) names.push_back(name);
    }
    layers_.clear();
  }
  if (names.empty() || std::exchange(warned_, true)) return;
  events.message(
      fmt::format("layer '{}'{} has only run in eval mode, which sections skip by default; write "
                  "'mode: both' (or 'mode: eval') into the section to record evaluations, or call "
                  "model.train() if it is a training",
                  names.front(),
                  names.size() > 1 ? fmt::format(", as {} more,", names.size() - 1) : ""),
      {}, LogLevel::warning);
}

namespace {

constexpr std::string_view kRemedy = "call step() at the end of every forward-backward";

}  // namespace

std::optional<std::string> MissingSteps::note_forward(LayerRouting& routing,
                                                      std::int64_t iteration) {
  const int forwards = routing.count_forward(iterations_.load(std::memory_order_relaxed));
  int most = most_forwards_.load(std::memory_order_relaxed);
  while (most < forwards && !most_forwards_.compare_exchange_weak(most, forwards)) {
  }
  if (forwards != kForwardsBeforeWarning) return std::nullopt;
  is_settled_ = true;
  return fmt::format("{} forwards without a call of debug.step(): the iteration is still {}; {}",
                     forwards, iteration, kRemedy);
}

void MissingSteps::note_step() {
  iterations_.fetch_add(1, std::memory_order_relaxed);
  is_settled_ = true;
}

void MissingSteps::note_jump() {
  iterations_.fetch_add(1, std::memory_order_relaxed);
  most_forwards_ = 0;
}

std::optional<std::string> MissingSteps::at_end(std::int64_t iteration) const {
  const int forwards = most_forwards_;
  if (is_settled_ || forwards < 2) return std::nullopt;
  return fmt::format(
      "debug.step() was never called: layers ran forward {} times, and all of it counts as "
      "iteration {}; {}",
      forwards, iteration, kRemedy);
}

namespace {

// The common reading, as one feature sees it: records whether the feature requested anything.
class NotedReading final : public TensorReading {
 public:
  explicit NotedReading(TensorReading& reading) : reading_(reading) {}

  std::optional<std::string> want(const StatisticsRequest& request) override {
    wanted_ = true;
    return reading_.want(request);
  }
  void read() override { reading_.read(); }

  bool wanted() const { return wanted_; }

 private:
  TensorReading& reading_;
  bool wanted_ = false;
};

void show(const ObservedTensor& call, MutationGuard& guard) {
  guard.add(call.scores != nullptr ? call.data() : call.tensor);
  guard.add(call.rowwise);
  if (!call.columnwise.is_same(call.rowwise)) guard.add(call.columnwise);
  guard.add(call.bias);
}

// Returns the device on which foreign code is checked; nullopt during a graph capture.
std::optional<DeviceId> checked_device(const TensorHandle& data) {
  return tensor_ops::is_capturing(data) ? std::nullopt : std::optional(data.device());
}

}  // namespace

void check_can_be_captured(const FeatureInstance& instance, std::string_view layer_name,
                           std::string_view call_name) {
  if (instance.feature->can_be_captured()) return;
  raise<UsageError>(
      "{}: it cannot be captured into a graph, since it needs the host in every iteration; leave "
      "the layer out of its section, or run it outside of the graph",
      make_context(instance, layer_name, call_name));
}

void HookCalls::inspect_tensor(const RoutingPlan& plan, const ObservedTensor& call) {
  constexpr std::string_view kCall = "inspect_tensor";
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint16_t bit = RoutingPlan::get_bit(call.tensor_name);
  const std::optional<DeviceId> device = checked_device(call.data());
  const bool captured = !device;
  if (!captured) warm_up_.see(answers.layer_name, plan.iteration, call.quantizer);
  const auto reading = statistics_.begin(*answers.observed, plan.iteration, call);
  std::vector<FeatureInstance*> readers;
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.inspect & bit)) continue;
    if (captured) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    const CostTimer cost(part.feature->section->budget());
    reading->begin_reader(part.feature->section->ring());
    NotedReading noted(*reading);
    isolation_.observe_tensors(
        *part.feature, {answers.layer_name, kCall, device},
        [&](MutationGuard& guard) { show(call, guard); },
        [&] { part.feature->feature->observe_tensor(at, call, noted); });
    if (noted.wanted()) readers.push_back(part.feature);
  }
  if (captured) {
    // An exception here propagates to the code that captures: it is not a failure of a feature.
    const NoGradScope no_grad;
    reading->capture(readers_when_due(plan, call.tensor_name));
    return;
  }
  // A failure of the common read is a failure of every feature that requested it.
  const NoGradScope no_grad;
  SharedCost cost(features_.sections().measures());
  for (const FeatureInstance* reader : readers) cost.add(reader->section->budget());
  cost.count_reads();
  if (!readers.empty()) features_.sections().count_read();
  try {
    reading->read();
  } catch (...) {
    rethrow_interruption();
    for (FeatureInstance* reader : readers)
      isolation_.switch_off(*reader, answers.layer_name, kCall);
  }
}

// The readers of the plan, in the order in which inspect_tensor called them.
DueReaders HookCalls::readers_when_due(const RoutingPlan& plan, TensorName tensor) {
  const PlanAnswers& answers = PlanAnswers::of(plan);
  std::vector<FeatureInstance*> readers;
  for (const PlanAnswers::Part& part : answers.parts) {
    if (part.inspect & RoutingPlan::get_bit(tensor)) readers.push_back(part.feature);
  }
  return [this, readers = std::move(readers), layer = std::string(answers.layer_name),
          tensor](std::int64_t iteration) {
    std::vector<bool> due(readers.size());
    for (std::size_t i = 0; i < readers.size(); ++i) {
      if (!readers[i]->section->runs()) continue;
      isolation_.observe(*readers[i], layer, "inspect_tensor_enabled", [&] {
        due[i] = readers[i]->feature->inspect_tensor_enabled({layer, iteration}, tensor).enabled;
      });
    }
    return due;
  };
}

void HookCalls::inspect_tensor_postquantize(const RoutingPlan& plan, const ObservedCopy& call) {
  constexpr std::string_view kCall = "inspect_tensor_postquantize";
  const std::optional<DeviceId> device = checked_device(call.tensor.data());
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint32_t bit = RoutingPlan::get_bit(call.gemm, call.tensor_name);
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.postquantize & bit)) continue;
    if (!device) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    isolation_.observe_tensors(
        *part.feature, {answers.layer_name, kCall, device},
        [&](MutationGuard& guard) { guard.add(call.tensor); },
        [&] { part.feature->feature->observe_copy(at, call); });
  }
}

void HookCalls::inspect_gemm(const RoutingPlan& plan, const ObservedGemm& call) {
  constexpr std::string_view kCall = "inspect_gemm";
  const std::optional<DeviceId> device = checked_device(call.output);
  const PlanAnswers& answers = PlanAnswers::of(plan);
  for (const auto* quantizer : {&call.a_quantizer, &call.b_quantizer}) {
    if (device) warm_up_.see(answers.layer_name, plan.iteration, *quantizer);
  }
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.gemms & RoutingPlan::get_bit(call.gemm))) continue;
    if (!device) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    isolation_.observe_tensors(
        *part.feature, {answers.layer_name, kCall, device},
        [&](MutationGuard& guard) {
          guard.add(call.a);
          guard.add(call.b);
          guard.add(call.bias);
          guard.add(call.output);
        },
        [&] { part.feature->feature->observe_gemm(at, call, answers.alterations); });
  }
}

void HookCalls::inspect_attention(const RoutingPlan& plan, const ObservedAttention& call) {
  constexpr std::string_view kCall = "inspect_attention";
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::optional<DeviceId> device = checked_device(call.query);
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!part.attention) continue;
    if (!device) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    isolation_.observe_tensors(
        *part.feature, {answers.layer_name, kCall, device},
        [&](MutationGuard& guard) { guard.add(call.query); },
        [&] { part.feature->feature->observe_attention(at, call); });
  }
}

namespace {

// A forward without an autograd graph does not require step(), and neither does a forward in eval
// mode, which may be an evaluation that builds a graph by mistake.
bool trains(const RoutingRequest& request, const ForwardSite& site) {
  return request.training_mode && !request.evaluation && site.records_gradients;
}

}  // namespace

void LayerListener::start(std::shared_ptr<void> owner) {
  const std::lock_guard lock(layers_mutex_);
  install(std::move(owner));
  first_number_ = jump_number_ = number_.load();
}

bool LayerListener::stop(std::chrono::milliseconds limit) {
  return hook_points::remove(adapter_.get()).wait_for_calls(limit);
}

// Repeated for every external change of the iteration: a sleeping layer wakes up in a session with
// a larger number.
void LayerListener::install(std::shared_ptr<void> owner) {
  number_ = hook_points::install(adapter_.get(), iteration(), std::move(owner));
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
      "two layers have this name, and their records are merged; give each a unique name (name=, or "
      "infer_and_assign_layer_names of a list of models)",
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

RoutingPlan LayerListener::route(LayerHooks& layer, const RoutingRequest& request,
                                 const ForwardSite& site) {
  SharedCost cost(features_.sections().measures());
  const std::shared_ptr<LayerRouting> shared = get_routing(layer);
  LayerRouting& routing = *shared;
  const std::int64_t now = iteration();
  const bool captured = site.is_captured;
  if (!captured && site.has_graphs && routing.claim_graph_memory()) {
    statistics_.prepare_for_graphs(routing.layer_name(), *site.device);
  }
  RoutingPlan plan =
      captured ? captured_plan(routing, request) : asked_plan(routing, request, site);
  for (const PlanAnswers::Part& part : PlanAnswers::of(plan).parts) {
    if (part.on() && !captured) cost.add(part.feature->section->budget());
  }
  if (plan.empty() && !captured) let_sleep(layer, routing, request, site);
  if (PlanAnswers::of(plan).left_out && !*routing.has_trained()) left_out_.note(routing);
  if (layer.kind() == LayerKind::attention) return plan;
  log_plan(routing, plan, request.under_recipe);
  if (trains(request, site)) {
    const auto text = missing_steps_.note_forward(routing, now);
    if (text) events_.message(*text, {}, LogLevel::warning);
  }
  return plan;
}

RoutingPlan LayerListener::asked_plan(LayerRouting& routing, const RoutingRequest& request,
                                      const ForwardSite& site) {
  const auto& features = routing.features();
  std::optional<RandomState> random;
  if (std::ranges::any_of(features, &FeatureInstance::is_foreign)) {
    random.emplace(site.device);
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
                              const RoutingRequest& request, const ForwardSite& site) {
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
  if (wanted_in_graphs && site.has_graphs) {
    layer.skip_eager_until(tick, request);
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
