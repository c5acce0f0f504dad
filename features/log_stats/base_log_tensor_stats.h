// The base namespace's LogTensorStats: statistics of tensors that a script hands to
// debug.log_tensor_stats(), under names of its own.
#pragma once

#include "hooks/feature_registration.h"

namespace telens::features {

FeatureRegistration base_log_tensor_stats(config::StatisticDescriptionsPtr defined);

}  // namespace telens::features
