// The explicit list of the features that come with TELens. A static initializer would not do: a
// linker drops it from an archive.
#include "features/disable_fp8.h"
#include "features/fake_quant.h"
#include "features/log_tensor_stats.h"
#include "features/log_tensor_stats_options.h"
#include "hooks/feature_registry.h"

namespace telens {
namespace {

// Does its work in debug.log_tensor_stats(), not in the hook points of layers.
FeatureRegistration base_log_tensor_stats() {
  return {
      features::base_log_tensor_stats_description(),
      [](const config::FeatureEntry&, FeatureServices&) { return std::make_unique<Feature>(); }};
}

}  // namespace

std::vector<FeatureRegistration> builtin_features() {
  return {features::log_tensor_stats(), features::log_fp8_tensor_stats(), features::fake_quant(),
          features::disable_fp8_gemm(), features::disable_fp8_layer(),    base_log_tensor_stats()};
}

}  // namespace telens
