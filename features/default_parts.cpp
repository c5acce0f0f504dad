// Registers the features, the statistics engine and the run file with sessions when libtelens.so is
// loaded, in the same way as operators register their kernels with PyTorch.
#include "hooks/feature_registry.h"

#include <utility>

#include "features/builtin_features.h"
#include "features/run_file_sink.h"
#include "hooks/engine/one_pass_engine.h"

namespace telens {
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

[[maybe_unused]] const bool kAreSet = (set_default_parts(all_parts()), true);

}  // namespace
}  // namespace telens
