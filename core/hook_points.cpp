#include "core/hook_points.h"

#include <pthread.h>

#include <mutex>
#include <utility>

#include "core/ops/capture.h"
#include "core/quantization/recipe.h"

namespace telens {

bool InspectTensorCall::follows_delayed() const {
  return recipe->as_delayed_scaling() != nullptr ||
         (quantizer != nullptr && quantizer->follows_history());
}

namespace hook_points {
namespace {

// Never destroyed: threads may run layers while the process exits.
CallGate& gate() {
  static auto& instance = *new CallGate;
  return instance;
}

std::atomic<std::uint64_t> session_count{0};
// The number that the current listener was installed under.
std::atomic<std::uint64_t> installed_as{0};

}  // namespace

std::atomic<std::uint64_t> current_tick{0};

std::uint64_t install(HookListener* listener, std::int64_t iteration, std::shared_ptr<void> owner) {
  current_tick.store(0, std::memory_order_relaxed);
  if (gate().target() != listener) gate().open(listener, std::move(owner));
  installed_as.store(session_count + 1, std::memory_order_relaxed);
  return renew(iteration);
}

CallGate::Closed remove(const HookListener* listener) {
  if (gate().target() == listener) current_tick.store(0, std::memory_order_relaxed);
  return gate().close(listener);
}

std::uint64_t renew(std::int64_t iteration) {
  const std::uint64_t session = ++session_count;
  current_tick.store(make_tick(session, iteration), std::memory_order_release);
  return session;
}

void set_iteration(std::int64_t iteration) {
  if (gate().target() != nullptr) {
    current_tick.store(make_tick(session_count.load(), iteration), std::memory_order_release);
  }
}

void prepare_forks() {
  static std::once_flag once;
  std::call_once(once, [] {
    pthread_atfork([] { gate().prepare_fork(); }, [] { gate().after_fork_in_parent(); },
                   [] {
                     gate().after_fork_in_child();
                     current_tick.store(0, std::memory_order_relaxed);
                   });
  });
}

ListenerCall::ListenerCall(const RoutingPlan& plan)
    : call_(gate()), listener_(static_cast<HookListener*>(call_.target())) {
  const std::uint64_t now = current_tick.load(std::memory_order_acquire) >> kIterationBits;
  const bool same_session =
      plan.session <= now && plan.session >= installed_as.load(std::memory_order_relaxed);
  if (!same_session) listener_ = nullptr;
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

LayerHooks::LayerHooks(std::string name, LayerKind kind) : kind_(kind), name_(std::move(name)) {}

void LayerHooks::share_automatic_name(const LayerHooks& first, std::string suffix) {
  automatic_name_ = first.automatic_name_;
  automatic_suffix_ = std::move(suffix);
}

void LayerHooks::set_name(std::string name) {
  if (name != name_) {
    name_ = std::move(name);
    // A new name selects other features: ask again.
    for (auto* sleeps : {&asleep_until_, &dozes_until_}) {
      for (auto& tick : *sleeps) tick.store(1, std::memory_order_relaxed);
    }
    wgrad_answer_ = 0;
    state_.reset();
  }
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
  const bool dozes = tick < dozes_until_[request.under_recipe].load(std::memory_order_relaxed);
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
