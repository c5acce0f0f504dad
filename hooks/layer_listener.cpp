#include "hooks/layer_listener.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

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

bool is_capturing(const Operand& operand) {
  if (const auto* plain = std::get_if<at::Tensor>(&operand)) return ops::is_capturing(*plain);
  const auto& quantized = std::get<QuantizedTensor>(operand);
  const QuantizedData& data =
      quantized.rowwise.defined() ? quantized.rowwise : quantized.columnwise;
  return ops::is_capturing(data.codes);
}

bool is_capturing(const InspectTensorCall& call) {
  return call.tensor != nullptr ? ops::is_capturing(*call.tensor) : is_capturing(*call.rowwise);
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

void LayerListener::start() {
  install();
  first_number_ = jump_number_ = number_;
}

void LayerListener::stop() { hook_points::install(nullptr, 0); }

// Anew for every change of the iteration from outside: a layer that sleeps wakes up in a session
// with a larger number.
void LayerListener::install() { number_ = hook_points::install(this, iteration()); }

void LayerListener::set_iteration(std::int64_t iteration) {
  iteration_.store(iteration, std::memory_order_relaxed);
  install();
  jump_number_ = number_;
}

void LayerListener::end_iteration() {
  const std::int64_t next = iteration() + 1;
  iteration_.store(next, std::memory_order_relaxed);
  hook_points::set_iteration(next);
  steps_.fetch_add(1, std::memory_order_relaxed);
}

void LayerListener::wake() { number_ = hook_points::renew(iteration()); }

LayerRouting& LayerListener::routing_of(LayerHooks& layer) {
  const std::lock_guard lock(layers_mutex_);
  auto* known = static_cast<LayerRouting*>(layer.state().get());
  if (known != nullptr && known->session() == number_) return *known;

  std::string name = layer.name();
  if (name.empty()) {
    LayerHooks::AutomaticName& automatic = layer.automatic_name();
    if (automatic.session < first_number_) {
      automatic = {number_, fmt::format("Layer_{}", ++unnamed_layers_)};
    }
    name = automatic.name + layer.automatic_suffix();
  }
  const std::vector<FeatureInstance*> all = features_.all_for(name);
  const std::vector<FeatureInstance*> features = FeatureSet::running(all);
  const bool is_watched = !features.empty();
  const bool grew = known != nullptr && known->session() >= jump_number_;
  auto routing =
      std::make_unique<LayerRouting>(number_, std::move(name), features, grew ? known : nullptr);
  LayerRouting& result = *routing;
  if (features.size() < all.size()) result.note_features_that_wait();
  if (known != nullptr && known->session() >= first_number_) {
    result.set_presence(known->presence());
  } else {
    SeenLayers::Entered entered = seen_.enter(result.layer_name());
    result.set_presence(std::move(entered.presence));
    if (entered.is_shared && is_watched) warn_of_shared_name(result.layer_name());
  }
  layer.state() = std::move(routing);
  return result;
}

void LayerListener::warn_of_shared_name(const std::string& name) {
  notices_.message(
      "two layers have this name: what is recorded of them is of both together; give each a name "
      "of its own (name=, or infer_and_assign_layer_names of a list of models)",
      name, LogLevel::warning);
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
  LayerRouting& routing = routing_of(layer);
  const std::int64_t now = iteration();
  const bool captured = request.like != nullptr && ops::is_capturing(*request.like);
  if (!captured && could_be_captured(request) && routing.claim_graph_memory()) {
    statistics_.prepare_for_graphs(routing.layer_name(), request.like->device());
  }
  RoutingPlan plan = captured ? captured_plan(routing, request)
                              : routing.route(now, request.under_recipe, switch_off_);
  for (const PlanAnswers::Part& part : PlanAnswers::of(plan).parts) {
    if (part.on() && !captured) cost.add(part.feature->section->budget());
  }
  if (plan.empty() && !captured) let_sleep(layer, routing, request);
  log_plan(routing, plan, request.under_recipe);
  if (routing.count_forward(steps_.load(std::memory_order_relaxed)) == kForwardsBeforeWarning) {
    notices_.message(
        fmt::format("{} forwards without a call of debug.step(): the iteration is still "
                    "{}; call step() at the end of every forward-backward",
                    kForwardsBeforeWarning, now),
        {}, LogLevel::warning);
  }
  return plan;
}

RoutingPlan LayerListener::captured_plan(const LayerRouting& routing,
                                         const RoutingRequest& request) {
  LayerRouting of_all(number_, routing.layer_name(), features_.all_for(routing.layer_name()),
                      &routing);
  return of_all.route_captured(iteration(), request.under_recipe, switch_off_);
}

void LayerListener::let_sleep(LayerHooks& layer, const LayerRouting& routing,
                              const RoutingRequest& request) {
  const auto wake = routing.sleep_until(iteration(), request.under_recipe);
  if (!wake) return;
  const bool ever = *wake <= hook_points::kLastIteration;
  const std::uint64_t tick =
      ever ? hook_points::tick_of(number_, *wake) : hook_points::tick_of(number_ + 1, 0);
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
      notices_.log(fmt::format("Tensor: {}, gemm {} - {}", telens::name_of(tensor),
                               telens::name_of(gemm), kTexts[kind]),
                   routing.layer_name(), LogLevel::info);
    }
  }
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
  const auto reading = statistics_.begin(answers.layer_name, plan.iteration, call);
  std::vector<FeatureInstance*> readers;
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.inspect & bit)) continue;
    if (captured) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    const CostTimer cost(part.feature->section->budget());
    reading->begin_reader(part.feature->section->ring());
    NotedReading noted(*reading);
    guard_.observe(*part.feature, answers.layer_name, kCall,
                   [&] { part.feature->feature->inspect_tensor(at, call, noted); });
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
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint32_t bit = RoutingPlan::bit_of(call.gemm, call.tensor_name);
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.postquantize & bit)) continue;
    if (is_capturing(call.tensor)) {
      check_can_be_captured(*part.feature, answers.layer_name, "inspect_tensor_postquantize");
    }
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    guard_.observe(*part.feature, answers.layer_name, "inspect_tensor_postquantize",
                   [&] { part.feature->feature->inspect_tensor_postquantize(at, call); });
  }
}

void LayerListener::inspect_gemm(LayerHooks&, const RoutingPlan& plan,
                                 const InspectGemmCall& call) {
  const PlanAnswers& answers = PlanAnswers::of(plan);
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.gemms & RoutingPlan::bit_of(call.gemm))) continue;
    if (ops::is_capturing(call.output)) {
      check_can_be_captured(*part.feature, answers.layer_name, "inspect_gemm");
    }
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    guard_.observe(*part.feature, answers.layer_name, "inspect_gemm",
                   [&] { part.feature->feature->inspect_gemm(at, call, answers.alterations); });
  }
}

}  // namespace telens::debug
