// PerTensorScaling: current scaling of chosen tensors within delayed scaling. Description; no
// LibTorch.
#pragma once

#include "hooks/config/feature_description.h"

namespace telens::features {

// It has no parameters beside GEMMs, tensors and schedule.
config::FeatureDescription per_tensor_scaling_description();

}  // namespace telens::features
