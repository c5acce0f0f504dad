// DisableFP8GEMM and DisableFP8Layer: run selected GEMMs, or all three of a layer, in high
// precision.
#pragma once

#include "hooks/feature_registration.h"

namespace telens::features {

FeatureRegistration disable_fp8_gemm();
FeatureRegistration disable_fp8_layer();

}  // namespace telens::features
