#include "hooks/session/hook_calls.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/ops/attention_statistics.h"
#include "core/ops/capture.h"
#include "core/quantization/quantized_tensor.h"
#include "hooks/feature_failure.h"

namespace telens::debug {
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

// A replacement tensor must have the shape of the original; otherwise the GEMM, or autograd, would
// fail without naming the feature.
void check_sizes(const Operand& result, const ModifyTensorCall& call) {
  const QuantizedTensor* quantized = quantized_or_null(&result);
  const at::IntArrayRef sizes = quantized != nullptr ? at::IntArrayRef(quantized->sizes)
                                                     : std::get<at::Tensor>(result).sizes();
  if (!call.tensor.defined() || sizes == call.tensor.sizes()) return;
  raise<ShapeError>("the {} of {} came out as {}; expected {}, its own shape",
                    telens::get_name(call.tensor_name), telens::get_name(call.gemm),
                    fmt::format("[{}]", fmt::join(sizes, ", ")),
                    fmt::format("[{}]", fmt::join(call.tensor.sizes(), ", ")));
}

const at::Tensor& get_data(const Operand& operand) {
  if (const auto* plain = std::get_if<at::Tensor>(&operand)) return *plain;
  const auto& quantized = std::get<QuantizedTensor>(operand);
  return quantized.rowwise.defined() ? quantized.rowwise.codes : quantized.columnwise.codes;
}

// Another device, including "meta", would fail in the GEMM, which does not know the feature.
void check_device(const Operand& result, const ModifyTensorCall& call) {
  const at::Tensor& data = get_data(result);
  if (!call.tensor.defined() || !data.defined() || data.device() == call.tensor.device()) return;
  raise<UsageError>("the {} of {} came out on the device {}; expected {}, its own device",
                    telens::get_name(call.tensor_name), telens::get_name(call.gemm),
                    data.device().str(), call.tensor.device().str());
}

const at::Tensor& get_data(const InspectTensorCall& call) {
  if (call.scores != nullptr) return call.scores->query;
  return call.tensor != nullptr ? *call.tensor : get_data(*call.rowwise);
}

template <typename Call>
bool is_capturing(const Call& call) {
  return ops::is_capturing(get_data(call));
}

template <typename Call>
at::Device get_device(const Call& call) {
  return get_data(call).device();
}

void show(const InspectTensorCall& call, Unwritten& tensors) {
  if (call.tensor != nullptr) tensors.add(*call.tensor);
  if (call.scores != nullptr) tensors.add(call.scores->query);
  if (call.rowwise != nullptr) tensors.add(*call.rowwise);
  if (call.columnwise != nullptr && call.columnwise != call.rowwise) tensors.add(*call.columnwise);
  if (call.bias != nullptr) tensors.add(*call.bias);
}

void check_can_be_captured(const FeatureInstance& instance, std::string_view layer_name,
                           std::string_view call_name) {
  if (instance.feature->can_be_captured()) return;
  raise<UsageError>(
      "{}: it cannot be captured into a graph, since it needs the host in every iteration; leave "
      "the layer out of its section, or run it outside of the graph",
      make_context(instance, layer_name, call_name));
}

}  // namespace

Operand HookCalls::modify_tensor(const RoutingPlan& plan, const ModifyTensorCall& call) {
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint32_t bit = RoutingPlan::get_bit(call.gemm, call.tensor_name);
  const auto part =
      std::ranges::find_if(answers.parts, [&](const auto& each) { return each.modify & bit; });
  if (part == answers.parts.end()) {
    raise<UsageError>(
        "layer '{}': modify_tensor was called for the {} of {}, which the plan does "
        "not modify",
        answers.layer_name, telens::get_name(call.tensor_name), telens::get_name(call.gemm));
  }
  if (call.tensor.defined() && ops::is_capturing(call.tensor)) {
    check_can_be_captured(*part->feature, answers.layer_name, "modify_tensor");
  }
  try {
    Operand result =
        part->feature->feature->modify_tensor({answers.layer_name, plan.iteration}, call);
    if (call.out == nullptr) {
      check_sizes(result, call);
      check_device(result, call);
    }
    return result;
  } catch (...) {
    rethrow_with_context(make_context(*part->feature, answers.layer_name, "modify_tensor"));
  }
}

void HookCalls::inspect_tensor(const RoutingPlan& plan, const InspectTensorCall& call) {
  constexpr std::string_view kCall = "inspect_tensor";
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint16_t bit = RoutingPlan::get_bit(call.tensor_name);
  const bool captured = is_capturing(call);
  if (!captured) warm_up_.see(answers.layer_name, plan.iteration, call.quantizer);
  const auto device = captured ? std::nullopt : std::optional(get_device(call));
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
    isolation_.observe_tensors(
        *part.feature, {answers.layer_name, kCall, device},
        [&](Unwritten& tensors) { show(call, tensors); },
        [&] { part.feature->feature->inspect_tensor(at, seen, noted); });
    if (noted.wanted()) readers.push_back(part.feature);
  }
  if (captured) {
    // An exception here propagates to the code that captures: it is not a failure of a feature.
    const at::NoGradGuard no_grad;
    reading->capture(readers_when_due(plan, call.tensor_name));
    return;
  }
  // A failure of the common read is a failure of every feature that requested it.
  const at::NoGradGuard no_grad;
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

void HookCalls::inspect_tensor_postquantize(const RoutingPlan& plan,
                                            const InspectPostquantizeCall& call) {
  constexpr std::string_view kCall = "inspect_tensor_postquantize";
  const auto device =
      is_capturing(call.tensor) ? std::nullopt : std::optional(get_device(call.tensor));
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const std::uint32_t bit = RoutingPlan::get_bit(call.gemm, call.tensor_name);
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.postquantize & bit)) continue;
    if (!device) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    isolation_.observe_tensors(
        *part.feature, {answers.layer_name, kCall, device},
        [&](Unwritten& tensors) { tensors.add(call.tensor); },
        [&] { part.feature->feature->inspect_tensor_postquantize(at, call); });
  }
}

void HookCalls::inspect_gemm(const RoutingPlan& plan, const InspectGemmCall& call) {
  constexpr std::string_view kCall = "inspect_gemm";
  const auto device =
      ops::is_capturing(call.output) ? std::nullopt : std::optional(call.output.device());
  const PlanAnswers& answers = PlanAnswers::of(plan);
  for (const Quantizer* quantizer : {call.a_quantizer, call.b_quantizer}) {
    if (device) warm_up_.see(answers.layer_name, plan.iteration, quantizer);
  }
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!(part.gemms & RoutingPlan::get_bit(call.gemm))) continue;
    if (!device) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    isolation_.observe_tensors(
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

void HookCalls::inspect_attention(const RoutingPlan& plan, const InspectAttentionCall& call) {
  constexpr std::string_view kCall = "inspect_attention";
  const PlanAnswers& answers = PlanAnswers::of(plan);
  const bool captured = ops::is_capturing(call.query);
  for (const PlanAnswers::Part& part : answers.parts) {
    if (!part.attention) continue;
    if (captured) check_can_be_captured(*part.feature, answers.layer_name, kCall);
    const CostTimer cost(part.feature->section->budget());
    const FeatureCall at{answers.layer_name, plan.iteration, &part.kept};
    isolation_.observe_tensors(
        *part.feature,
        {answers.layer_name, kCall, captured ? std::nullopt : std::optional(call.query.device())},
        [&](Unwritten& tensors) { tensors.add(call.query); },
        [&] { part.feature->feature->inspect_attention(at, call); });
  }
}

}  // namespace telens::debug
