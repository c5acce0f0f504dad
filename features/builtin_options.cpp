#include "features/builtin_options.h"

#include "features/block_telemetry/block_telemetry_options.h"
#include "features/collective_check/collective_check_options.h"
#include "features/dump_tensors/dump_tensors_options.h"
#include "features/fake_quant/fake_quant_options.h"
#include "features/gemm_error/gemm_error_options.h"
#include "features/log_stats/log_stats_options.h"
#include "features/online_diagnosis/online_diagnosis_options.h"
#include "features/precision_ledger/precision_ledger_options.h"
#include "features/rank_agreement/rank_agreement_options.h"
#include "features/trigger/trigger_options.h"
#include "features/value_histogram/value_histogram_options.h"

namespace telens::features {

config::Descriptions builtin_descriptions(const config::StatisticDescriptionsPtr& statistics) {
  config::Descriptions descriptions;
  descriptions.add(log_tensor_stats_description(statistics));
  for (config::FeatureDescription& each : low_precision_stats_descriptions()) {
    descriptions.add(std::move(each));
  }
  descriptions.add(fake_quant_description());
  descriptions.add(per_tensor_scaling_description());
  descriptions.add(disable_fp8_gemm_description());
  descriptions.add(disable_fp8_layer_description());
  descriptions.add(base_log_tensor_stats_description(statistics));
  descriptions.add(dump_tensors_description());
  descriptions.add(precision_ledger_description());
  descriptions.add(gemm_error_description());
  descriptions.add(value_histogram_description());
  descriptions.add(tensor_digests_description());
  descriptions.add(scale_health_description());
  descriptions.add(block_telemetry_description());
  descriptions.add(rank_agreement_description());
  descriptions.add(collective_check_description());
  descriptions.add(trigger_description(statistics));
  descriptions.add(online_diagnosis_description());
  return descriptions;
}

}  // namespace telens::features
