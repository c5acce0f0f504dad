// DisableFP8GEMM and DisableFP8Layer: descriptions; no LibTorch.
#pragma once

#include "hooks/config/feature_description.h"

namespace telens::features {

config::FeatureDescription disable_fp8_gemm_description();
config::FeatureDescription disable_fp8_layer_description();

}  // namespace telens::features
