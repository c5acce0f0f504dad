#include "features/collective_check/watched_collectives.h"

#include <exception>
#include <utility>

#include "hooks/running_iteration.h"

namespace telens::features {
namespace {

CollectivePlace& last_place() {
  static thread_local CollectivePlace place{"before any layer", "activation"};
  return place;
}

}  // namespace

void WatchedCollectives::show_place(CollectivePlace place) { last_place() = std::move(place); }

CollectiveObserver::OnResult WatchedCollectives::begin(const ObservedCollective& call) {
  try {
    return look_at(call, last_place());
  } catch (const std::exception&) {
    failed_ = true;
    return {};
  }
}

CollectiveObserver::OnResult WatchedCollectives::look_at(const ObservedCollective& call,
                                                         CollectivePlace place) {
  const std::int64_t iteration = running_iteration();
  const std::lock_guard lock(mutex_);
  if (!due_ || !due_(iteration)) return {};
  if (iteration != iteration_) {  // the rest arrived after the step() of their iteration
    seen_.clear();
    iteration_ = iteration;
    ++turn_;
  }
  const std::size_t number = seen_.begin(call, std::move(place));
  return [self = shared_from_this(), number, turn = turn_](const TensorHandle& result) {
    const std::lock_guard within(self->mutex_);
    if (self->turn_ != turn) return;
    try {
      self->seen_.end(number, result);
    } catch (const std::exception&) {
      self->failed_ = true;
    }
  };
}

void WatchedCollectives::clear() {
  const std::lock_guard lock(mutex_);
  seen_.clear();
  iteration_ = -1;
  ++turn_;
}

void WatchedCollectives::stop() {
  const std::lock_guard lock(mutex_);
  due_ = nullptr;
  seen_.clear();
  ++turn_;
}

}  // namespace telens::features
