// Looks at the collectives of layers and of the program while an iteration runs, on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "core/distributed/collective_watch.h"
#include "features/collective_check/seen_collectives.h"

namespace telens::features {

// Outlives the feature where a collective still runs.
class WatchedCollectives final : public CollectiveWatch,
                                 public std::enable_shared_from_this<WatchedCollectives> {
 public:
  // due(iteration): its collectives are looked at.
  explicit WatchedCollectives(std::function<bool(std::int64_t)> due) : due_(std::move(due)) {}

  // The place of the collectives that this thread begins from here on.
  static void show_place(CollectivePlace place);

  // A layer must not fail for what looks at it: failed() tells of that.
  OnResult begin(const CollectiveCall& call) override;
  OnResult look_at(const CollectiveCall& call, CollectivePlace place);

  // Calls use(seen), which is empty where nothing was seen in this iteration.
  template <typename Use>
  void use(std::int64_t iteration, Use use) {
    const std::lock_guard lock(mutex_);
    if (iteration != iteration_) seen_.clear();
    use(seen_);
  }
  void clear();
  void stop();  // nothing is due from here on

  bool failed() const { return failed_; }

 private:
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  // over what follows
  std::function<bool(std::int64_t)> due_;
  std::int64_t iteration_ = -1;
  std::uint64_t turn_ = 0;  // another one: seen_ has begun anew
  SeenCollectives seen_;
};

}  // namespace telens::features
