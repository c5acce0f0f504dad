// LogTensorStats, LogFp8TensorStats and its like, and ScaleHealth: they ask the statistics engine
// for what their options name.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <vector>

#include "hooks/engine/statistics_list.h"
#include "hooks/feature_registration.h"
#include "hooks/scheduled_feature.h"

namespace telens::features {

// Statistics of selected tensors, by their StatisticsOptions. A statistic that has no meaning for a
// tensor (one of the running recipe where the layer runs unquantized) is left out with one warning.
class LogStatistics final : public ScheduledFeature {
 public:
  LogStatistics(const config::FeatureEntry& entry, FeatureServices& services);

  bool can_be_captured() const override { return true; }

  void inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
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
