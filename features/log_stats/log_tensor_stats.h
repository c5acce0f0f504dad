// LogTensorStats, LogFp8TensorStats and LogNvfp4TensorStats: they ask the statistics engine for
// what their options name.
#pragma once

#include <array>
#include <atomic>
#include <vector>

#include "features/statistics/statistic_name.h"
#include "hooks/feature_registry.h"
#include "hooks/scheduled_feature.h"

namespace telens::features {

// Statistics of selected tensors, by their `stats`. What has no meaning for a tensor (statistics of
// the running recipe where the layer runs unquantized) is left out with one warning.
class LogStatistics final : public ScheduledFeature {
 public:
  // The statistics of a selection's parameters.
  using Parse = std::vector<StatisticName> (*)(const config::Value& parameters);

  LogStatistics(const config::FeatureEntry& entry, FeatureServices& services, Parse parse);

  bool can_be_captured() const override { return true; }

  void inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                      TensorReading& reading) override;

 private:
  FeatureServices& services_;
  std::atomic<bool> warned_{false};
  std::array<StatisticsRequestPtr, kAllTensors.size()> requests_;
};

FeatureRegistration log_tensor_stats(config::StatisticDescriptionsPtr defined);
FeatureRegistration log_fp8_tensor_stats();
FeatureRegistration log_nvfp4_tensor_stats();

}  // namespace telens::features
