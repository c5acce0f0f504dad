// LogTensorStats of the base namespace: statistics of tensors that a script passes to
// debug.log_tensor_stats(), under names that the script chooses.
#pragma once

#include "hooks/feature_registration.h"

namespace telens::features {

FeatureRegistration base_log_tensor_stats(config::StatisticDescriptionsPtr defined);

}  // namespace telens::features
