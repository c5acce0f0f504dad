// The ranks of a session: the groups over which statistics are reduced, the start of a session, and
// the comparison of ranks at the end of an iteration.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/config/config.h"
#include "hooks/rank_checker.h"
#include "hooks/rank_group.h"
#include "hooks/session/feature_set.h"
#include "hooks/session/logs.h"
#include "hooks/session_options.h"
#include "hooks/sink.h"

namespace telens::debug {

// ---- the groups over which statistics are reduced: the groups that the program chose, else the
// world

// All calls are thread-safe, except begin().
class ReductionGroups {
 public:
  // Called once, before the other calls. Ranks that watch different things do not reduce anything.
  void begin(RankGroupPtr world, bool ranks_agree);

  // Returns all ranks, or null if there is only this rank.
  const RankGroupPtr& world() const { return world_; }

  // Chooses the group of a layer, or with an empty name the default group of the other layers. Null
  // restores the default.
  void choose(RankGroupPtr group, std::string_view layer_name);
  void reduce_weights(bool enabled) { reduce_weights_ = enabled; }

  // Returns the group of tensors in general: the chosen group, else the world.
  RankGroupPtr of_tensors() const;
  // For a tensor of that layer that a script passes: the group, null for this rank only, and
  // whether this rank logs the result.
  struct ForScript {
    RankGroupPtr group;
    bool logs = true;
  };
  ForScript for_script(std::string_view layer_name, const LogTensorStatsOptions& options,
                       bool is_last_rank) const;

  // Returns all groups; the caller fills in the due flags and the decisions.
  Reductions reductions() const;

 private:
  // Returns the group that was chosen for the layer, in this call or before; null if none was.
  RankGroupPtr chosen_for(std::string_view layer_name, const RankGroupPtr& in_call) const;

  RankGroupPtr world_;
  bool ranks_agree_ = true;

  mutable std::mutex mutex_;  // guards the members below
  RankGroupPtr chosen_;       // null for the default
  Reductions::OfLayers of_layers_;

  std::atomic<bool> reduce_weights_{true};
};

// ---- how the ranks begin a session: all accept it or none does; they begin together, or each
// separately if one is missing; and with one configuration, or without comparing anything

// The parts of a session that depend on how the ranks have met. If a rank runs separately, the
// world is removed from its options.
struct RankMeeting {
  InitializeOptions& options;
  const config::Config& config;  // `accept` loads it
  EventLog& events;
  ReductionGroups& groups;
  Sink& run_file;
};

// accept: throws if this rank refuses. Rethrows that exception; throws UsageError if another rank
// refuses. Returns an object that the session holds until its end, or null.
std::shared_ptr<void> meet_ranks(const RankMeeting& meeting, const std::function<void()>& accept);

// ---- the end of an iteration for features that compare ranks (hooks/rank_checker.h): one exchange
// for all of them, which ends if a rank does not arrive

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
