#include "core/hook_points.h"

#include <mutex>
#include <utility>

#include "core/ops/capture.h"

namespace telens {
namespace hook_points {
namespace {

std::atomic<HookListener*> current_listener{nullptr};
std::atomic<std::uint64_t> session_count{0};
// The number that the present listener was installed under.
std::atomic<std::uint64_t> installed_as{0};

}  // namespace

std::atomic<std::uint64_t> current_tick{0};

std::uint64_t install(HookListener* listener, std::int64_t iteration) {
  current_tick.store(0, std::memory_order_relaxed);
  current_listener.store(listener, std::memory_order_release);
  if (listener == nullptr) {
    return session_count.load();
  }
  installed_as.store(session_count + 1, std::memory_order_relaxed);
  return renew(iteration);
}

std::uint64_t renew(std::int64_t iteration) {
  const std::uint64_t session = ++session_count;
  current_tick.store(tick_of(session, iteration), std::memory_order_release);
  return session;
}

void set_iteration(std::int64_t iteration) {
  if (current_listener.load() != nullptr) {
    current_tick.store(tick_of(session_count.load(), iteration), std::memory_order_release);
  }
}

HookListener* listener_of(const RoutingPlan& plan) {
  const std::uint64_t now = current_tick.load(std::memory_order_acquire) >> kIterationBits;
  const bool same_session =
      plan.session <= now && plan.session >= installed_as.load(std::memory_order_relaxed);
  return same_session ? current_listener.load(std::memory_order_acquire) : nullptr;
}

}  // namespace hook_points

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

LayerHooks::LayerHooks(std::string name) : name_(std::move(name)) {}

void LayerHooks::share_automatic_name(const LayerHooks& first, std::string suffix) {
  automatic_name_ = first.automatic_name_;
  automatic_suffix_ = std::move(suffix);
}

void LayerHooks::set_name(std::string name) {
  if (name != name_) {
    name_ = std::move(name);
    asleep_until_ = {1, 1};  // another name, other features: ask anew
    dozes_until_ = {1, 1};
    state_.reset();
  }
}

std::shared_ptr<const RoutingPlan> LayerHooks::ask(const RoutingRequest& request) {
  const std::uint64_t tick = hook_points::current_tick.load(std::memory_order_acquire);
  const bool dozes = tick < dozes_until_[request.under_recipe];
  if (dozes && (request.like == nullptr || !ops::is_capturing(*request.like))) {
    return nullptr;
  }
  RoutingPlan probe;
  probe.session = tick >> hook_points::kIterationBits;
  HookListener* listener = hook_points::listener_of(probe);
  if (listener == nullptr) {
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
