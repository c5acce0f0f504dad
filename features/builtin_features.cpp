#include "features/builtin_features.h"

namespace telens {

std::vector<FeatureRegistration> builtin_features(
    const config::StatisticDescriptionsPtr& statistics) {
  std::vector<FeatureRegistration> list{
      features::log_tensor_stats(statistics),
      features::fake_quant(),
      features::per_tensor_scaling(),
      features::disable_fp8_gemm(),
      features::disable_fp8_layer(),
      features::base_log_tensor_stats(statistics),
      features::dump_tensors(),
      features::precision_ledger(),
      features::gemm_error(),
      features::value_histogram(),
      features::tensor_digests(),
      features::trigger(statistics),
      features::scale_health(),
      features::block_telemetry(),
      features::rank_agreement(),
      features::collective_check(),
      features::online_diagnosis(),
  };
  // After LogTensorStats, because these features are similar.
  const std::vector<FeatureRegistration> more = features::log_low_precision_stats();
  list.insert(list.begin() + 1, more.begin(), more.end());
  return list;
}

}  // namespace telens
