#include "features/builtin_features.h"

#include <utility>

#include "features/run_file_sink.h"
#include "hooks/engine/one_pass_engine.h"

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
  // Listed after LogTensorStats, because these features are similar.
  const std::vector<FeatureRegistration> more = features::log_low_precision_stats();
  list.insert(list.begin() + 1, more.begin(), more.end());
  return list;
}

namespace {

SessionParts all_parts() {
  SessionParts parts;
  parts.builtin = {.features = builtin_features, .has_statistic = is_builtin_statistic};
  parts.make_engine = [](SeriesTable& series, const StatisticRegistry& defined,
                         OnStatisticFailure on_failure) {
    return make_statistics_engine(series, &defined, std::move(on_failure));
  };
  parts.make_run_file = [] { return std::make_unique<features::RunFileSink>(); };
  return parts;
}

// Registers the features, the statistics engine and the run file with sessions when libtelens.so is
// loaded, as operators register their kernels with PyTorch.
[[maybe_unused]] const bool kAreSet = (set_default_parts(all_parts()), true);

}  // namespace
}  // namespace telens
