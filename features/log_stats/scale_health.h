// ScaleHealth: asks the statistics engine how well scales fit.
#pragma once

#include "hooks/feature_registry.h"

namespace telens::features {

FeatureRegistration scale_health();

}  // namespace telens::features
