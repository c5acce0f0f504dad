#include "features/log_stats/scale_health.h"

#include <memory>

#include "features/log_stats/log_tensor_stats.h"
#include "features/log_stats/scale_health_options.h"

namespace telens::features {

FeatureRegistration scale_health() {
  return {scale_health_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<LogStatistics>(
                entry, services, [](const config::Value& parameters) {
                  return ScaleHealthOptions::from(parameters).statistics;
                });
          }};
}

}  // namespace telens::features
