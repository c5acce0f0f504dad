// TensorDigests: digests of tensors' bits. Description; no LibTorch.
#pragma once

#include "hooks/config/feature_description.h"

namespace telens::features {

config::FeatureDescription tensor_digests_description();

}  // namespace telens::features
