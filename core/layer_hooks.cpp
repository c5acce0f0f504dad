#include "core/layer_hooks.h"

#include <pthread.h>

#include <mutex>
#include <utility>

namespace telens {

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

LayerHooks::LayerHooks(std::string name, LayerKind kind) : kind_(kind), name_(std::move(name)) {}

void LayerHooks::share_automatic_name(const LayerHooks& first, std::string suffix) {
  automatic_name_ = first.automatic_name_;
  automatic_suffix_ = std::move(suffix);
}

void LayerHooks::set_name(std::string name) {
  if (name != name_) {
    name_ = std::move(name);
    // A new name selects other features: ask again.
    for (auto* sleeps : {&asleep_until_, &skips_eager_until_}) {
      for (auto& tick : *sleeps) tick.store(1, std::memory_order_relaxed);
    }
    wgrad_answer_ = 0;
    state_.reset();
  }
}

}  // namespace telens
