// RankAgreement: compares replicas over ranks. Options and description; no LibTorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "hooks/config/feature_description.h"

namespace telens::features {

// The time that a rank waits for a missing rank if the configuration does not set it: torch's own
// timeout for collectives of NCCL.
inline constexpr std::int64_t kDefaultTimeout = 600;  // seconds

// The parameter `timeout`.
config::Parameter timeout_parameter();

// "weight" -> "weight_differs", the statistic that is recorded for a compared item.
std::string differs_name(std::string_view what);

struct RankAgreementOptions {
  std::chrono::seconds timeout{kDefaultTimeout};
};

config::FeatureDescription rank_agreement_description();

}  // namespace telens::features
