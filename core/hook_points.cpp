#include "core/hook_points.h"

#include <utility>

#include "core/ops/device.h"
#include "core/quantization/recipe.h"

namespace telens {

bool InspectTensorCall::follows_delayed() const {
  return recipe->as_delayed_scaling() != nullptr ||
         (quantizer != nullptr && quantizer->follows_history());
}

namespace {

bool same_layout(const QuantizedData& a, const QuantizedData& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.codes.sizes() == b.codes.sizes() && a.scale_inv.sizes() == b.scale_inv.sizes();
}

bool same_layout(const Operand& a, const Operand& b) {
  if (is_quantized(a) != is_quantized(b)) return false;
  if (!is_quantized(a)) {
    const auto &left = std::get<at::Tensor>(a), &right = std::get<at::Tensor>(b);
    return left.sizes() == right.sizes() && left.scalar_type() == right.scalar_type();
  }
  const auto &left = std::get<QuantizedTensor>(a), &right = std::get<QuantizedTensor>(b);
  return left.format == right.format && left.mode == right.mode && left.sizes == right.sizes &&
         left.blocks == right.blocks && left.power_of_2_scales == right.power_of_2_scales &&
         same_layout(left.rowwise, right.rowwise) && same_layout(left.columnwise, right.columnwise);
}

}  // namespace

Operand ModifyTensorCall::deliver(Operand value) const {
  if (out == nullptr) return value;
  if (!same_layout(value, *out)) {
    *out = value;
  } else if (const auto* quantized = std::get_if<QuantizedTensor>(&value)) {
    auto& kept = std::get<QuantizedTensor>(*out);
    kept.rowwise.fill(quantized->rowwise);
    kept.columnwise.fill(quantized->columnwise);
  } else {
    std::get<at::Tensor>(*out).copy_(std::get<at::Tensor>(value));
  }
  return value;
}

bool LayerHooks::may_watch_wgrad() {
  const std::uint64_t tick = hook_points::current_tick.load(std::memory_order_acquire);
  const std::uint64_t session = tick >> hook_points::kIterationBits;
  if (session == 0) return false;
  const std::uint64_t known = wgrad_answer_.load(std::memory_order_relaxed);
  if (known / 2 == session) return known % 2 != 0;
  RoutingPlan probe;
  probe.session = session;
  const hook_points::ListenerCall listener(probe);
  if (!listener) return false;
  const std::optional<bool> answer = listener->may_watch_wgrad(*this);
  if (answer) wgrad_answer_.store(2 * session + (*answer ? 1 : 0), std::memory_order_relaxed);
  return answer.value_or(true);
}

std::shared_ptr<const RoutingPlan> LayerHooks::ask(const RoutingRequest& request) {
  const std::uint64_t tick = hook_points::current_tick.load(std::memory_order_acquire);
  const bool dozes =
      tick < skips_eager_until_[request.under_recipe].load(std::memory_order_relaxed);
  if (dozes && (request.like == nullptr || !ops::is_capturing(*request.like))) {
    return nullptr;
  }
  RoutingPlan probe;
  probe.session = tick >> hook_points::kIterationBits;
  const hook_points::ListenerCall listener(probe);
  if (!listener) {
    return nullptr;
  }
  RoutingPlan plan = listener->route(*this, request);
  if (plan.empty()) {
    return nullptr;
  }
  plan.session = probe.session;
  return std::make_shared<const RoutingPlan>(plan);
}

}  // namespace telens
