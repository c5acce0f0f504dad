// The end of an iteration for features that compare ranks (hooks/rank_checker.h): one exchange for
// all of them, and an end to it where a rank does not come.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "hooks/gather_over_ranks.h"
#include "hooks/model_tensor.h"
#include "hooks/rank_checker.h"
#include "hooks/reductions.h"
#include "hooks/session/event_log.h"
#include "hooks/session/feature_set.h"
#include "hooks/session/observer_isolation.h"

namespace telens::debug {

class RankChecks {
 public:
  // All of them live longer.
  RankChecks(FeatureSet& features, ObserverIsolation& isolation, EventLog& events)
      : features_(features), isolation_(isolation), events_(events) {}

  // How long the features want to wait for a rank; nullopt: none compares any, or there is no
  // other.
  std::optional<std::chrono::seconds> longest_wait(const ReductionGroup& world) const;
  // The group of all ranks for the exchanges: one of its own, with that time as its limit, since a
  // collective that fails leaves its group out of step. Null: ranks are not compared.
  void exchange_over(ReductionGroup group) { group_ = std::move(group); }
  // Ranks are compared, and all have come so far.
  bool is_on() const { return !alone_ && has_several_ranks(group_); }

  // True if tensors of the model are wanted in this iteration, by this rank or one that has others.
  bool want_model(std::int64_t iteration) const;
  void look_at(std::int64_t iteration, std::span<const ModelTensor> tensors);
  void look_at(std::int64_t iteration, const ProgramCollective& collective);

  // Every rank of the group calls it in step(). Where one does not come in time, or its connection
  // breaks, it is named; from then on this rank compares nothing.
  void run(std::int64_t iteration);

 private:
  struct Due {
    FeatureInstance* instance;
    RankChecker* checker;
  };
  std::vector<Due> due_in(std::int64_t iteration) const;
  std::vector<RankWords> exchange(const RankWords& own, std::int64_t iteration,
                                  c10d::ProcessGroup& group);
  std::vector<RankWords> gather(const RankWords& own, c10d::ProcessGroup& group);

  FeatureSet& features_;
  ObserverIsolation& isolation_;
  EventLog& events_;
  ReductionGroup group_;
  // Words that travel in the first message; what a rank has beyond follows in another. The same on
  // all ranks.
  std::size_t capacity_ = 64;
  std::int64_t exchanges_ = 0;
  std::atomic<bool> alone_{false};  // a rank did not come
};

}  // namespace telens::debug
