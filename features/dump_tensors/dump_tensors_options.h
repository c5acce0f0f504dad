// DumpTensors: writes tensors to disk. Options and description; no LibTorch.
#pragma once

#include "hooks/config/feature_description.h"

namespace telens::features {

struct DumpTensorsOptions {
  bool high_precision = false;
  bool quantized = false;
  bool operands = false;
};

config::FeatureDescription dump_tensors_description();

}  // namespace telens::features
