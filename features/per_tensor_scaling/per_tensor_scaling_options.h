// PerTensorScaling: current scaling of selected tensors within delayed scaling. Description; no
// LibTorch.
#pragma once

#include "hooks/config/feature_description.h"

namespace telens::features {

// Its only parameters are GEMMs, tensors and schedule.
config::FeatureDescription per_tensor_scaling_description();

}  // namespace telens::features
