// The features that change what a layer computes. They see LibTorch's tensors; this header does
// not.
#pragma once

#include "hooks/feature_registration.h"

namespace telens::features {

FeatureRegistration fake_quant();
FeatureRegistration per_tensor_scaling();

}  // namespace telens::features
