// CollectiveCheck: compares the data that ranks send with the results of their collectives.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "features/collective_check/collective_check_options.h"
#include "features/collective_check/watched_collectives.h"
#include "hooks/engine/compared_items.h"
#include "hooks/feature_registration.h"
#include "hooks/rank_checker.h"

namespace telens::features {

class CollectiveCheck final : public Observer, public RankChecker {
 public:
  CollectiveCheck(const config::FeatureEntry& entry, FeatureServices& services);
  ~CollectiveCheck() override;

  // Reads only inputs, to know the layer that runs. A wgrad may still be added to its target
  // directly.
  RoutingCalls routing_calls() const override;
  bool reads_statistics(TensorName, std::int64_t) const override { return false; }
  bool may_watch_wgrad() const override { return false; }
  bool follows_schedules() const override { return true; }
  RoutingAnswer inspect_tensor_enabled(const FeatureCall& at, TensorName tensor) override;
  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;
  void end() override;

  bool wants_model() const override { return options_.gradients; }
  void look_at(const ModelTensor& tensor) override;
  void look_at_collective(const ProgramCollective& collective) override;
  std::vector<std::int64_t> get_words(std::int64_t iteration) override;
  void compare(std::int64_t iteration,
               std::span<const std::vector<std::int64_t>> of_ranks) override;
  std::chrono::seconds longest_wait() const override { return options_.timeout; }

 private:
  const config::FeatureEntry& entry_;
  FeatureServices& services_;
  const CollectiveCheckOptions& options_;
  std::shared_ptr<WatchedCollectives> watch_;
  CollectiveObservation observation_{watch_};
  std::mutex mutex_;  // guards the members below
  ComparedItems gradients_;
  std::set<std::string> told_;
};

// The outcome of an iteration on this rank.
struct JudgedCollectives {
  std::int64_t iteration;
  std::vector<WrongCollective> wrong;
  std::vector<CollectivePlace> places;  // all places at which a collective was compared
};

// Records the outcome, and warns of places that are not in `told` yet.
void report(const JudgedCollectives& judged, FeatureServices& services,
            std::set<std::string>& told);

FeatureRegistration collective_check();

}  // namespace telens::features
