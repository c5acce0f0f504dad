// The built-in features. This header does not include LibTorch, although fake_quant and
// per_tensor_scaling use it.
#pragma once

#include <vector>

#include "hooks/feature_registry.h"

namespace telens {

// Configurations may name these statistics in addition to the built-in ones; nullptr if there are
// none.
std::vector<FeatureRegistration> builtin_features(
    const config::StatisticDescriptionsPtr& statistics = nullptr);

namespace features {

// Each function is defined in the source of its feature. `statistics`: as in builtin_features().
FeatureRegistration base_log_tensor_stats(config::StatisticDescriptionsPtr statistics);
FeatureRegistration block_telemetry();
FeatureRegistration collective_check();
FeatureRegistration disable_fp8_gemm();
FeatureRegistration disable_fp8_layer();
FeatureRegistration dump_tensors();
FeatureRegistration fake_quant();
FeatureRegistration gemm_error();
std::vector<FeatureRegistration> log_low_precision_stats();
FeatureRegistration log_tensor_stats(config::StatisticDescriptionsPtr statistics);
FeatureRegistration online_diagnosis();
FeatureRegistration per_tensor_scaling();
FeatureRegistration precision_ledger();
FeatureRegistration rank_agreement();
FeatureRegistration scale_health();
FeatureRegistration tensor_digests();
FeatureRegistration trigger(config::StatisticDescriptionsPtr statistics);
FeatureRegistration value_histogram();

}  // namespace features
}  // namespace telens
