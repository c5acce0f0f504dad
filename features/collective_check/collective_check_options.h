// CollectiveCheck: compares sent data with results. Options and description; no LibTorch.
#pragma once

#include <chrono>

#include "features/rank_agreement/rank_agreement_options.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

struct CollectiveCheckOptions {
  std::chrono::seconds timeout{kDefaultTimeout};
  bool gradients = true;
};

config::FeatureDescription collective_check_description();

}  // namespace telens::features
