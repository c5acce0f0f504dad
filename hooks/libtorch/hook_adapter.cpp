// Answers the hook points of LibTorch's layers (core/hook_points.h) with a session's listener,
// which sees their calls without LibTorch's types.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "core/base/error.h"
#include "core/hook_points.h"
#include "core/ops/device.h"
#include "core/quantization/quantized_tensor.h"
#include "core/torch_compat.h"
#include "hooks/feature.h"
#include "hooks/observer.h"
#include "hooks/session/layer_listener.h"

namespace telens::debug {
namespace {

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

// Another device, including "meta", would fail in the GEMM, whose error cannot name the feature.
void check_device(const Operand& result, const ModifyTensorCall& call) {
  const at::Tensor& data = get_data(result);
  if (!call.tensor.defined() || !data.defined() || data.device() == call.tensor.device()) return;
  raise<UsageError>("the {} of {} came out on the device {}; expected {}, its own device",
                    telens::get_name(call.tensor_name), telens::get_name(call.gemm),
                    data.device().str(), call.tensor.device().str());
}

// Returns the feature that modifies the tensor.
FeatureInstance& find_modifier(const PlanAnswers& answers, const ModifyTensorCall& call) {
  const std::uint32_t bit = RoutingPlan::get_bit(call.gemm, call.tensor_name);
  const auto part =
      std::ranges::find_if(answers.parts, [&](const auto& each) { return each.modify & bit; });
  if (part == answers.parts.end()) {
    raise<UsageError>(
        "layer '{}': modify_tensor was called for the {} of {}, which the plan does "
        "not modify",
        answers.layer_name, telens::get_name(call.tensor_name), telens::get_name(call.gemm));
  }
  return *part->feature;
}

Operand call_modify(FeatureInstance& instance, const FeatureCall& at,
                    const ModifyTensorCall& call) {
  auto* feature = dynamic_cast<Feature*>(instance.feature.get());
  if (feature == nullptr) {
    raise<UsageError>(
        "modify_tensor_enabled answered true for the {} of {}, but the class only observes; derive "
        "it from telens::Feature, or answer false",
        telens::get_name(call.tensor_name), telens::get_name(call.gemm));
  }
  Operand result = feature->modify_tensor(at, call);
  if (call.out == nullptr) {
    check_sizes(result, call);
    check_device(result, call);
  }
  return result;
}

Operand modify(const RoutingPlan& plan, const ModifyTensorCall& call) {
  const PlanAnswers& answers = PlanAnswers::of(plan);
  FeatureInstance& instance = find_modifier(answers, call);
  if (call.tensor.defined() && ops::is_capturing(call.tensor)) {
    check_can_be_captured(instance, answers.layer_name, "modify_tensor");
  }
  try {
    return call_modify(instance, {answers.layer_name, plan.iteration}, call);
  } catch (...) {
    rethrow_with_context(make_context(instance, answers.layer_name, "modify_tensor"));
  }
}

class HookAdapter final : public HookListener {
 public:
  explicit HookAdapter(LayerListener& listener) : listener_(listener) {}

  RoutingPlan route(LayerHooks& layer, const RoutingRequest& request) override {
    ForwardSite site{.records_gradients = at::GradMode::is_enabled()};
    if (request.like != nullptr) {
      site.device = to_handle(request.like->device());
      site.is_captured = ops::is_capturing(*request.like);
      site.has_graphs = ops::has_graphs(request.like->device());
    }
    return listener_.route(layer, request, site);
  }
  Operand modify_tensor(LayerHooks&, const RoutingPlan& plan,
                        const ModifyTensorCall& call) override {
    return modify(plan, call);
  }
  void inspect_tensor(LayerHooks&, const RoutingPlan& plan,
                      const InspectTensorCall& call) override {
    InspectTensorCall seen = call;
    seen.evaluation = plan.evaluation;
    listener_.calls().inspect_tensor(plan, seen);
  }
  void inspect_tensor_postquantize(LayerHooks&, const RoutingPlan& plan,
                                   const InspectPostquantizeCall& call) override {
    listener_.calls().inspect_tensor_postquantize(plan, call);
  }
  void inspect_gemm(LayerHooks&, const RoutingPlan& plan, const InspectGemmCall& call) override {
    listener_.calls().inspect_gemm(plan, call);
  }
  void inspect_attention(LayerHooks&, const RoutingPlan& plan,
                         const InspectAttentionCall& call) override {
    listener_.calls().inspect_attention(plan, call);
  }
  std::optional<bool> may_watch_wgrad(LayerHooks& layer) override {
    return listener_.may_watch_wgrad(layer);
  }

 private:
  LayerListener& listener_;
};

}  // namespace

std::shared_ptr<HookListener> make_hook_adapter(LayerListener& listener) {
  return std::make_shared<HookAdapter>(listener);
}

}  // namespace telens::debug
