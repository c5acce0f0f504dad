// The descriptions of the built-in features, for programs that read configurations without
// LibTorch: the command and the tests. features/builtin_features.cpp has the same list with the
// implementations; a test compares the two lists.
#pragma once

#include "hooks/config/feature_description.h"
#include "hooks/config/statistic_description.h"

namespace telens::features {

// Configurations may name these statistics in addition to the built-in ones; nullptr if there are
// none.
config::Descriptions builtin_descriptions(
    const config::StatisticDescriptionsPtr& statistics = nullptr);

// The descriptions of features without typed options.
config::FeatureDescription disable_fp8_gemm_description();
config::FeatureDescription disable_fp8_layer_description();
config::FeatureDescription per_tensor_scaling_description();  // only GEMMs, tensors and schedule
config::FeatureDescription tensor_digests_description();

}  // namespace telens::features
