// Observes the collectives of layers and of the program during an iteration, on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "features/collective_check/seen_collectives.h"
#include "hooks/collective_observer.h"

namespace telens::features {

// Outlives the feature if a collective is still running.
class WatchedCollectives final : public CollectiveObserver,
                                 public std::enable_shared_from_this<WatchedCollectives> {
 public:
  // due(iteration): returns true if the iteration's collectives must be observed.
  explicit WatchedCollectives(std::function<bool(std::int64_t)> due) : due_(std::move(due)) {}

  // Sets the place of the collectives that this thread begins from now on.
  static void show_place(CollectivePlace place);

  // A layer must not fail because of its observer; failed() reports errors.
  OnResult begin(const ObservedCollective& call) override;
  OnResult look_at(const ObservedCollective& call, CollectivePlace place);

  // Calls use(seen), which is empty if nothing was observed in this iteration.
  template <typename Use>
  void use(std::int64_t iteration, Use use) {
    const std::lock_guard lock(mutex_);
    if (iteration != iteration_) seen_.clear();
    use(seen_);
  }
  void clear();
  void stop();  // nothing is due after this

  bool failed() const { return failed_; }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // guards the members below
  std::function<bool(std::int64_t)> due_;
  std::int64_t iteration_ = -1;
  std::uint64_t turn_ = 0;  // changes when seen_ restarts
  SeenCollectives seen_;
};

}  // namespace telens::features
