// Trigger: acts when a number fulfills a condition. Options and description; no LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "features/trigger/condition.h"
#include "hooks/config/feature_description.h"
#include "hooks/config/section_keys.h"

namespace telens::features {

struct TriggerOptions {
  std::vector<Condition> when;              // any of them
  config::StatisticDescriptionsPtr plugin;  // keeps plugins' statistics alive; nullptr if none
  std::optional<std::int64_t> start;
  std::optional<std::int64_t> write_last;
  std::optional<std::int64_t> operands;  // elements kept per operand; only with write_last
  std::int64_t most_mebibytes = config::kMostMebibytesByDefault;
  bool stop = false;
  std::int64_t max_firings = 1;
  std::int64_t cooldown = 0;
};

// Conditions may also use statistics of plugins.
config::FeatureDescription trigger_description(config::StatisticDescriptionsPtr plugin = nullptr);

}  // namespace telens::features
