// RankAgreement: compares replicated weights, scales and amax histories over ranks.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "features/rank_agreement/rank_agreement_options.h"
#include "hooks/engine/rank_exchange.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"
#include "hooks/rank_checker.h"

namespace telens::features {

class RankAgreement final : public ScheduledObserver, public RankChecker {
 public:
  RankAgreement(const config::FeatureEntry& entry, FeatureServices& services);

  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;

  bool wants_model() const override { return true; }
  void look_at(const ModelTensor& tensor) override;
  std::vector<std::int64_t> get_words(std::int64_t iteration) override;
  void compare(std::int64_t iteration,
               std::span<const std::vector<std::int64_t>> of_ranks) override;
  std::chrono::seconds longest_wait() const override { return options_.timeout; }

 private:
  void begin_iteration(std::int64_t iteration);  // requires the lock
  std::optional<std::uint64_t> part_of_scale(const FeatureCall& at, const ObservedTensor& call);

  FeatureServices& services_;
  const RankAgreementOptions& options_;
  std::mutex mutex_;  // guards the members below
  std::int64_t iteration_ = -1;
  ComparedItems items_;
  // The group over which a layer's amaxes are reduced, as of its newest forward. A backward runs
  // outside of the region.
  std::map<std::string, std::uint64_t, std::less<>> amax_groups_;
  std::set<std::string> warned_;  // differences that were already warned of
};

// Records the result of a comparison, and warns of differences that are not in `warned` yet. Adds
// them to `warned`. `title`: the name of the feature in warnings.
void report(const ComparedItems& items, std::int64_t iteration, std::span<const RankWords> of_ranks,
            std::string_view title, FeatureServices& services, std::set<std::string>& warned);

}  // namespace telens::features
