#include "core/kernels/cpu/simd_target.h"

#include <hwy/highway.h>
#include <hwy/targets.h>

namespace telens::kernels {

std::vector<SimdTarget> simd_targets() {
  std::vector<SimdTarget> targets;
  for (const std::int64_t bit : hwy::SupportedAndGeneratedTargets()) {
    targets.push_back({bit, hwy::TargetName(bit)});
  }
  return targets;
}

ScopedSimdTarget::ScopedSimdTarget(const SimdTarget& target) {
  hwy::SetSupportedTargetsForTest(target.bit);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

ScopedSimdTarget::~ScopedSimdTarget() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace telens::kernels
