// DisableFP8GEMM and DisableFP8Layer: run selected GEMMs, or all three of a layer, in high
// precision.
#include <memory>

#include "features/builtin_features.h"
#include "features/builtin_options.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"

namespace telens::features {
namespace {

class DisableFp8 final : public ScheduledObserver {
 public:
  explicit DisableFp8(const config::FeatureEntry& entry)
      : ScheduledObserver(entry, {.disable_fp8_gemm = true}) {}
};

FeatureRegistration registration(config::FeatureDescription description) {
  return {std::move(description), [](const config::FeatureEntry& entry, FeatureServices&) {
            return std::make_unique<DisableFp8>(entry);
          }};
}

}  // namespace

FeatureRegistration disable_fp8_gemm() { return registration(disable_fp8_gemm_description()); }
FeatureRegistration disable_fp8_layer() { return registration(disable_fp8_layer_description()); }

}  // namespace telens::features
