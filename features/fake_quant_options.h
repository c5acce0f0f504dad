// FakeQuant: quantize and dequantize, then the GEMM in high precision. Options and description; no
// LibTorch.
#pragma once

#include "core/formats/format_id.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

struct FakeQuantOptions {
  FormatId format = FormatId::e4m3;  // e4m3 or e5m2

  // From the parameters of a config::Selection, which have been validated.
  static FakeQuantOptions from(const config::Value& parameters);
};

config::FeatureDescription fake_quant_description();

}  // namespace telens::features
