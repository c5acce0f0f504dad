// LogTensorStats, LogFp8TensorStats and similar features, and ScaleHealth: they request the
// statistics that their options name from the statistics engine.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "hooks/engine/statistics_list.h"
#include "hooks/feature_registration.h"
#include "hooks/scheduled_observer.h"

namespace telens::features {

// Statistics of selected tensors, according to their StatisticsOptions. A statistic that does not
// apply to a tensor (for example of the running recipe, if the layer runs unquantized) is skipped
// with one warning.
class LogStatistics final : public ScheduledObserver {
 public:
  LogStatistics(const config::FeatureEntry& entry, FeatureServices& services);

  bool can_be_captured() const override { return true; }

  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;

 private:
  FeatureServices& services_;
  std::atomic<bool> warned_{false};
  std::array<std::optional<StatisticsList>, kAllTensors.size()> requests_;
};

FeatureRegistration log_tensor_stats(config::StatisticDescriptionsPtr plugin);
std::vector<FeatureRegistration> log_low_precision_stats();
FeatureRegistration scale_health();

}  // namespace telens::features
