// PrecisionLedger: records the precision in which each GEMM ran, and checks it against
// expectations.
#pragma once

#include "features/precision_ledger/precision_ledger_options.h"
#include "hooks/feature_registration.h"

namespace telens::features {

FeatureRegistration precision_ledger();

}  // namespace telens::features
