#include "hooks/layer_listener.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/interruption.h"
#include "core/ops/capture.h"
#include "core/quantization/operand.h"
#include "hooks/feature_failure.h"

namespace telens::debug {
namespace {

constexpr int kForwardsBeforeWarning = 1000;

// The common reading, as one feature sees it: keeps in mind whether the feature wanted anything.
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

// What takes a tensor's place has its shape; else the GEMM, or autograd, would fail without a word
// about the feature.
void check_sizes(const Operand& result, const ModifyTensorCall& call) {
  const QuantizedTensor* quantized = quantized_or_null(&result);
  const at::IntArrayRef sizes = quantized != nullptr ? at::IntArrayRef(quantized->sizes)
                                                     : std::get<at::Tensor>(result).sizes();
  if (!call.tensor.defined() || sizes == call.tensor.sizes()) return;
  raise<ShapeError>("the {} of {} came out as {}; expected {}, its own shape",
                    telens::name_of(call.tensor_name), telens::name_of(call.gemm),
                    fmt::format("[{}]", fmt::join(sizes, ", ")),
                    fmt::format("[{}]", fmt::join(call.tensor.sizes(), ", ")));
}

const at::Tensor& data_of(const Operand& operand) {
  if (const auto* plain = std::get_if<at::Tensor>(&operand)) return *plain;
  const auto& quantized = std::get<QuantizedTensor>(operand);
  return quantized.rowwise.defined() ? quantized.rowwise.codes : quantized.columnwise.codes;
}

const at::Tensor& data_of(const InspectTensorCall& call) {
  return call.tensor != nullptr ? *call.tensor : data_of(*call.rowwise);
}

template <typename Call>
bool is_capturing(const Call& call) {
  return ops::is_capturing(data_of(call));
}

template <typename Call>
at::Device device_of(const Call& call) {
  return data_of(call).device();
}

void show(const InspectTensorCall& call, Unwritten& tensors) {
  if (call.tensor != nullptr) tensors.add(*call.tensor);
  if (call.rowwise != nullptr) tensors.add(*call.rowwise);
  if (call.columnwise != nullptr && call.columnwise != call.rowwise) tensors.add(*call.columnwise);
  if (call.bias != nullptr) tensors.add(*call.bias);
}

bool could_be_captured(const RoutingRequest& request) {
  return request.like != nullptr && ops::has_graphs(request.like->device());
}

void check_can_be_captured(const FeatureInstance& instance, std::string_view layer_name,
                           std::string_view call_name) {
  if (instance.feature->can_be_captured()) return;
  raise<UsageError>(
      "{}: it cannot be captured into a graph, since it needs the host in every iteration; leave "
      "the layer out of its section, or run it outside of the graph",
      context_of(instance, layer_name, call_name));
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

// Anew for every change of the iteration from outside: a layer that sleeps wakes up in a session
// with a larger number.
void LayerListener::install(std::shared_ptr<void> owner) {
  number_ = hook_points::install(this, iteration(), std::move(owner));
}

void LayerListener::set_iteration(std::int64_t iteration) {
  const std::lock_guard lock(layers_mutex_);
  iteration_.store(iteration, std::memory_order_relaxed);
  install();
  jump_number_ = number_.load();
}

void LayerListener::end_iteration() {
  warn_of_left_out();
  const std::int64_t next = iteration() + 1;
  iteration_.store(next, std::memory_order_relaxed);
  hook_points::set_iteration(next);
  steps_.fetch_add(1, std::memory_order_relaxed);
}

void LayerListener::wake() {
  const std::lock_guard lock(layers_mutex_);
  number_ = hook_points::renew(iteration());
}

std::shared_ptr<LayerRouting> LayerListener::routing_of(LayerHooks& layer) {
  const std::lock_guard lock(layers_mutex_);
  const std::uint64_t number = number_;
  const auto known = std::static_pointer_cast<LayerRouting>(layer.state());
  if (known != nullptr && known->session() == number) return known;

  std::string name = layer.name();
  if (name.empty()) {
    LayerHooks::AutomaticName& automatic = layer.automatic_name();
    if (automatic.session < first_number_) {
      automatic = {number, fmt::format("Layer_{}", ++unnamed_layers_)};
    }
    name = automatic.name + layer.automatic_suffix();
  }
  const std::vector<FeatureInstance*> all = features_.all_for(name);
  const std::vector<FeatureInstance*> features = FeatureSet::running(all);
  const bool is_watched = !features.empty();
  const bool grew = known != nullptr && known->session() >= jump_number_;
  auto routing = std::make_shared<LayerRouting>(number, std::move(name), features,
                                                grew ? known.get() : nullptr);
  routing->set_observed(statistics_.layer(routing->layer_name()));
  if (features.size() < all.size()) routing->note_features_that_wait();
  if (known != nullptr && known->session() >= first_number_) {
    routing->set_presence(known->presence());
  } else {
    SeenLayers::Entered entered = seen_.enter(routing->layer_name());
    routing->set_presence(std::move(entered.presence));
    if (entered.is_shared && is_watched) warn_of_shared_name(routing->layer_name());
  }
  // A call of an ended session leaves alone what the next one knows.
  if (known == nullptr || known->session() < number) layer.state() = routing;
  return routing;
}

void LayerListener::warn_of_shared_name(const std::string& name) {
  events_.message(
      "two layers have this name: what is recorded of them is of both together; give each a name "
      "of its own (name=, or infer_and_assign_layer_names of a list of models)",
      name, LogLevel::warning);
}

void LayerListener::note_left_out(const LayerRouting& routing) {
  const std::lock_guard lock(layers_mutex_);
  left_out_.emplace(routing.layer_name(), routing.has_trained());
}

// Where a training goes on, evaluations are left out on purpose; of a model that is only evaluated
// the run file would stay empty.
void LayerListener::warn_of_left_out() {
  std::vector<std::string> names;
  {
    const std::lock_guard lock(layers_mutex_);
    for (const auto& [name, has_trained] : left_out_) {
      if (!*has_trained) names.push_back(name);
    }
    left_out_.clear();
  }
  if (names.empty() || std::exchange(warned_of_left_out_, true)) return;
  events_.message(
      fmt::format(
          "layer '{}'{} has run in eval mode alone, which sections leave out unless they say "
          "otherwise; write 'mode: both' (or 'mode: eval') into the section to record "
          "evaluations, or call model.train() if it is a training",
          names.front(), names.size() > 1 ? fmt::format(", as {} more,", names.size() - 1) : ""),
      {}, LogLevel::warning);
}

void LayerListener::note_script(std::string_view layer_name) {
  const std::lock_guard lock(layers_mutex_);
  seen_.enter_script(layer_name);
}

std::vector<std::string> LayerListener::idle_sections(const config::Config& config) {
  const std::lock_guard lock(layers_mutex_);
  return seen_.idle_sections(config);
}

RoutingPlan LayerListener::route(LayerHooks& layer, const RoutingRequest& request) {
  SharedCost cost(features_.sections().measures());
  const std::shared_ptr<LayerRouting> shared = routing_of(layer);
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
  if (PlanAnswers::of(plan).left_out && !*routing.has_trained()) note_left_out(routing);
  log_plan(routing, plan, request.under_recipe);
  if (routing.count_forward(steps_.load(std::memory_order_relaxed)) == kForwardsBeforeWarning) {
    events_.message(
        fmt::format("{} forwards without a call of debug.step(): the iteration is still "
                    "{}; call step() at the end of every forward-backward",
                    kForwardsBeforeWarning, now),
        {}, LogLevel::warning);
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
      if (each->is_foreign()) tell_of_randomness(*each, routing.layer_name(), "routing calls");
    }
  }
  return plan;
}

RoutingPlan LayerListener::captured_plan(const LayerRouting& routing,
                                         const RoutingRequest& request) {
  LayerRouting of_all(routing.session(), routing.layer_name(),
                      features_.all_for(routing.layer_name()), &routing);
  return of_all.route_captured(iteration(), request, switch_off_);
}

void LayerListener::let_sleep(LayerHooks& layer, const LayerRouting& routing,
                              const RoutingRequest& request) {
  const auto wake = routing.sleep_until(iteration(), request.under_recipe);
  if (!wake) return;
  const bool ever = *wake <= hook_points::kLastIteration;
  // By the number that it was routed under: another thread may have woken all layers meanwhile.
  const std::uint64_t number = routing.session();
  const std::uint64_t tick =
      ever ? hook_points::tick_of(number, *wake) : hook_points::tick_of(number + 1, 0);
  // What a graph would have to hold: something that is due later, or whose section has not begun.
  const bool wanted_in_graphs = ever || routing.has_features_that_wait();
  if (wanted_in_graphs && could_be_captured(request)) {
    layer.doze_until(tick, request);
  } else {
    layer.sleep_until(tick, request);
  }
}

// One message for each input of each GEMM: how it gets there.
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
      events_.log(fmt::format("Tensor: {}, gemm {} - {}", telens::name_of(tensor),
                              telens::name_of(gemm), kTexts[kind]),
                  routing.layer_name(), LogLevel::info);
    }
  }
}

void LayerListener::observe(FeatureInstance& feature, const Shown& shown, const Show& show,
                            const std::function<void()>& call) {
  const auto& [layer_name, call_name, device] = shown;
  if (!feature.observes.load(std::memory_order_relaxed)) return;
  if (!feature.is_foreign() || !device) {
    return guard_.observe(feature, layer_name, call_name, call);
  }
  RandomState random(device);
  bool was_written = false;
  {
    Unwritten tensors;
    show(tensors);
    guard_.observe(feature, layer_name, call_name, call);
    was_written = tensors.was_written();
  }
  if (random.restore()) tell_of_randomness(feature, layer_name, call_name);
  if (!was_written) return;
  guard_.switch_off(feature, layer_name, call_name,
                    "it wrote to a tensor that it may only look at; what was there is lost, the "
                    "training goes on with what it wrote; let it work on a copy (tensor.clone())");
}

void LayerListener::tell_of_randomness(FeatureInstance& feature, std::string_view layer_name,
                                       std::string_view call_name) {
  if (feature.told_of_randomness.exchange(true)) return;
  events_.announce(
      "feature_random",
      fmt::format("{}: torch's random numbers were drawn, which a run without it would not do; "
                  "they are put back each time; give the feature a torch.Generator of its own",
                  context_of(feature, layer_name, call_name)),
      layer_name);
}

Operand LayerListener::modify_tensor(LayerHooks&, const RoutingPlan& plan,
                                     const ModifyTensorCall& call) {
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint32_t bit = RoutingPlan::bit_of(call.gemm, call.tensor_name);
  const auto part =
      std::ranges::find_if(answers.parts, [&](const auto& each) { return each.modify & bit; });
  if (part == answers.parts.end()) {
    raise<UsageError>(
        "layer '{}': modify_tensor was called for the {} of {}, which the plan does "
        "not modify",
        answers.layer_name, telens::name_of(call.tensor_name), telens::name_of(call.gemm));
  }
  if (call.tensor.defined() && ops::is_capturing(call.tensor)) {
    check_can_be_captured(*part->feature, answers.layer_name, "modify_tensor");
  }
  try {
    Operand result =
        part->feature->feature->modify_tensor({answers.layer_name, plan.iteration}, call);
    if (call.out == nullptr) check_sizes(result, call);
    return result;
  } catch (...) {
    rethrow_with_context(context_of(*part->feature, answers.layer_name, "modify_tensor"));
  }
}

void LayerListener::inspect_tensor(LayerHooks&, const RoutingPlan& plan,
                                   const InspectTensorCall& call) {
  constexpr std::string_view kCall = "inspect_tensor";
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint8_t bit = RoutingPlan::bit_of(call.tensor_name);
  const bool captured = is_capturing(call);
  if (!captured) warm_up_.see(answers.layer_name, plan.iteration, call.quantizer);
  const auto device = captured ? std::nullopt : std::optional(device_of(call));
  InspectTensorCall seen = call;
  seen.evaluation = plan.evaluation;
  const auto reading = statistics_.begin(*answers.observed, plan.iteration, seen);
  std::vector<FeatureInstance*> readers;
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.inspect & bit)) continue;
    if (captured) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    const CostTimer cost(part.feature->section->budget());
    reading->begin_reader(part.feature->section->ring());
    NotedReading noted(*reading);
    observe(
        *part.feature, {answers.layer_name, kCall, device},
        [&](Unwritten& tensors) { show(call, tensors); },
        [&] { part.feature->feature->inspect_tensor(at, seen, noted); });
    if (noted.wanted()) readers.push_back(part.feature);
  }
  if (captured) {
    // Not the failure of a feature: whoever captures has to know.
    const at::NoGradGuard no_grad;
    reading->capture(readers_when_due(plan, call.tensor_name));
    return;
  }
  // What goes wrong in the common read is the failure of all who asked for it.
  const at::NoGradGuard no_grad;
  SharedCost cost(features_.sections().measures());
  for (const FeatureInstance* reader : readers) cost.add(reader->section->budget());
  cost.count_reads();
  if (!readers.empty()) features_.sections().count_read();
  try {
    reading->read();
  } catch (...) {
    let_interruptions_pass();
    for (FeatureInstance* reader : readers) guard_.switch_off(*reader, answers.layer_name, kCall);
  }
}

// Those of the plan, in the order in which inspect_tensor called them.
DueReaders LayerListener::readers_when_due(const RoutingPlan& plan, TensorName tensor) {
  const PlanAnswers& answers = PlanAnswers::of(plan);
  std::vector<FeatureInstance*> readers;
  for (const PlanAnswers::Part& part : answers.parts) {
    if (part.inspect & RoutingPlan::bit_of(tensor)) readers.push_back(part.feature);
  }
  return [this, readers = std::move(readers), layer = std::string(answers.layer_name),
          tensor](std::int64_t iteration) {
    std::vector<bool> due(readers.size());
    for (std::size_t i = 0; i < readers.size(); ++i) {
      if (!readers[i]->section->runs()) continue;
      guard_.observe(*readers[i], layer, "inspect_tensor_enabled", [&] {
        due[i] = readers[i]->feature->inspect_tensor_enabled({layer, iteration}, tensor).enabled;
      });
    }
    return due;
  };
}

void LayerListener::inspect_tensor_postquantize(LayerHooks&, const RoutingPlan& plan,
                                                const InspectPostquantizeCall& call) {
  constexpr std::string_view kCall = "inspect_tensor_postquantize";
  const auto device =
      is_capturing(call.tensor) ? std::nullopt : std::optional(device_of(call.tensor));
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint32_t bit = RoutingPlan::bit_of(call.gemm, call.tensor_name);
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.postquantize & bit)) continue;
    if (!device) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    observe(
        *part.feature, {answers.layer_name, kCall, device},
        [&](Unwritten& tensors) { tensors.add(call.tensor); },
        [&] { part.feature->feature->inspect_tensor_postquantize(at, call); });
  }
}

void LayerListener::inspect_gemm(LayerHooks&, const RoutingPlan& plan,
                                 const InspectGemmCall& call) {
  constexpr std::string_view kCall = "inspect_gemm";
  const auto device =
      ops::is_capturing(call.output) ? std::nullopt : std::optional(call.output.device());
  const PlanAnswers& answers = PlanAnswers::of(plan);
  for (const Quantizer* quantizer : {call.a_quantizer, call.b_quantizer}) {
    if (device) warm_up_.see(answers.layer_name, plan.iteration, quantizer);
  }
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.gemms & RoutingPlan::bit_of(call.gemm))) continue;
    if (!device) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    observe(
        *part.feature, {answers.layer_name, kCall, device},
        [&](Unwritten& tensors) {
          tensors.add(call.a);
          tensors.add(call.b);
          tensors.add(call.bias);
          tensors.add(call.output);
        },
        [&] { part.feature->feature->inspect_gemm(at, call, answers.alterations); });
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
