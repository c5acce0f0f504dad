// RankAgreement: replicas compared over ranks. Options and description; no LibTorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "hooks/config/feature_description.h"

namespace telens::features {

// How long a rank waits for one that does not come, unless told otherwise: torch's own time for
// collectives of NCCL.
inline constexpr std::int64_t kDefaultTimeout = 600;  // seconds

// The parameter `timeout`.
config::Parameter timeout_parameter();

// "weight" -> "weight_differs", the statistic that is recorded of what was compared.
std::string differs_name(std::string_view what);

struct RankAgreementOptions {
  std::chrono::seconds timeout{kDefaultTimeout};
};

config::FeatureDescription rank_agreement_description();

}  // namespace telens::features
