#include "features/builtin_features.h"

#include "features/altering_features.h"
#include "features/block_telemetry/block_telemetry.h"
#include "features/collective_check/collective_check.h"
#include "features/disable_fp8/disable_fp8.h"
#include "features/dump_tensors/dump_tensors.h"
#include "features/gemm_error/gemm_error.h"
#include "features/log_stats/base_log_tensor_stats.h"
#include "features/log_stats/log_stats.h"
#include "features/online_diagnosis/online_diagnosis.h"
#include "features/precision_ledger/precision_ledger.h"
#include "features/rank_agreement/rank_agreement.h"
#include "features/tensor_digests/tensor_digests.h"
#include "features/trigger/trigger.h"
#include "features/value_histogram/value_histogram.h"

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
