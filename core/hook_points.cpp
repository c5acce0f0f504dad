#include "core/hook_points.h"

#include <mutex>
#include <utility>

namespace telens {
namespace hook_points {
namespace {

std::atomic<HookListener*> current_listener{nullptr};
std::atomic<std::uint64_t> session_count{0};

}  // namespace

std::atomic<std::uint64_t> current_tick{0};

std::uint64_t install(HookListener* listener, std::int64_t iteration) {
  current_tick.store(0, std::memory_order_relaxed);
  current_listener.store(listener, std::memory_order_release);
  if (listener == nullptr) {
    return session_count.load();
  }
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
  const bool same_session =
      current_tick.load(std::memory_order_acquire) >> kIterationBits == plan.session;
  return same_session ? current_listener.load(std::memory_order_acquire) : nullptr;
}

}  // namespace hook_points

LayerHooks::LayerHooks(std::string name) : name_(std::move(name)) {}

void LayerHooks::set_name(std::string name) {
  if (name != name_) {
    name_ = std::move(name);
    asleep_until_ = {1, 1};  // another name, other features: ask anew
    state_.reset();
  }
}

std::shared_ptr<const RoutingPlan> LayerHooks::ask(const RoutingRequest& request) {
  const std::uint64_t tick = hook_points::current_tick.load(std::memory_order_acquire);
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
