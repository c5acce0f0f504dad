// The end of an iteration for features that compare ranks (hooks/rank_checker.h): one exchange for
// all of them, which ends if a rank does not arrive.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "hooks/model_tensor.h"
#include "hooks/rank_checker.h"
#include "hooks/rank_group.h"
#include "hooks/session/event_log.h"
#include "hooks/session/feature_set.h"
#include "hooks/session/observer_isolation.h"

namespace telens::debug {

class RankChecks {
 public:
  // All references outlive it.
  RankChecks(FeatureSet& features, ObserverIsolation& isolation, EventLog& events)
      : features_(features), isolation_(isolation), events_(events) {}

  // Returns the longest time that features wait for a rank; nullopt if no feature compares ranks,
  // or there is only one rank.
  std::optional<std::chrono::seconds> longest_wait(const RankGroupPtr& world) const;
  // Sets the group with all ranks for the exchanges: a dedicated group with that timeout, since a
  // collective that fails leaves its group out of step. Null if ranks are not compared.
  void exchange_over(RankGroupPtr group) { group_ = std::move(group); }
  // Returns true if ranks are compared, and all have arrived so far.
  bool is_on() const { return !alone_ && has_several_ranks(group_); }

  // Returns true if ranks are compared and a due feature reads tensors of the model in this
  // iteration.
  bool want_model(std::int64_t iteration) const;
  void look_at(std::int64_t iteration, std::span<const ModelTensor> tensors);
  void look_at(std::int64_t iteration, const ProgramCollective& collective);

  // Every rank of the group calls it in step(). If one does not arrive in time, or its connection
  // breaks, it is named; after that, this rank compares nothing.
  void run(std::int64_t iteration);

 private:
  struct Due {
    FeatureInstance* instance;
    RankChecker* checker;
  };
  std::vector<Due> due_in(std::int64_t iteration) const;
  std::vector<RankWords> exchange(const RankWords& own, std::int64_t iteration, RankGroup& group);
  std::vector<RankWords> gather(const RankWords& own, RankGroup& group);

  FeatureSet& features_;
  ObserverIsolation& isolation_;
  EventLog& events_;
  RankGroupPtr group_;
  // Number of words in the first message; further words of a rank are sent in a second one. The
  // same on all ranks.
  std::size_t capacity_ = 64;
  std::int64_t exchanges_ = 0;
  std::atomic<bool> alone_{false};  // a rank did not arrive
};

}  // namespace telens::debug
