// PrecisionLedger: what each GEMM ran in, and whether that is what was expected.
#pragma once

#include "features/precision_ledger/precision_ledger_options.h"
#include "hooks/feature_registration.h"

namespace telens::features {

FeatureRegistration precision_ledger();

}  // namespace telens::features
