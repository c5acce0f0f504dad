#include "core/base/call_gate.h"

#include <utility>

namespace telens {
namespace {

thread_local const CallGate::Call* innermost = nullptr;

}  // namespace

CallGate::Call::Call(CallGate& gate) : gate_(gate) {
  {
    const std::lock_guard lock(gate.mutex_);
    opening_ = gate.opening_;
    if (opening_ != nullptr) ++opening_->calls;
  }
  if (opening_ != nullptr) outer_ = std::exchange(innermost, this);
}

CallGate::Call::~Call() {
  if (opening_ == nullptr) return;
  innermost = outer_;
  {
    const std::lock_guard lock(gate_.mutex_);
    --opening_->calls;
  }
  gate_.ended_.notify_all();
  // Without the lock, the last call of a closed gate releases the owner here.
}

int CallGate::calls_of_this_thread(const Opening& opening) {
  int calls = 0;
  for (const Call* call = innermost; call != nullptr; call = call->outer_) {
    calls += call->opening_.get() == &opening;
  }
  return calls;
}

bool CallGate::Closed::wait_for_calls(std::chrono::milliseconds limit) const {
  if (opening_ == nullptr) return true;
  const int own = calls_of_this_thread(*opening_);
  std::unique_lock lock(gate_.mutex_);
  return gate_.ended_.wait_for(lock, limit, [&] { return opening_->calls <= own; });
}

void CallGate::open(void* target, std::shared_ptr<void> owner) {
  auto opening = std::make_shared<Opening>(Opening{target, std::move(owner)});
  const std::lock_guard lock(mutex_);
  opening.swap(opening_);
}

CallGate::Closed CallGate::close(const void* target) {
  const std::lock_guard lock(mutex_);
  const bool is_there = opening_ != nullptr && opening_->target == target;
  return {*this, is_there ? std::exchange(opening_, nullptr) : nullptr};
}

void* CallGate::target() const {
  const std::lock_guard lock(mutex_);
  return opening_ ? opening_->target : nullptr;
}

void CallGate::after_fork_in_child() {
  static_cast<void>(new std::shared_ptr<Opening>(std::move(opening_)));
  mutex_.unlock();
}

}  // namespace telens
