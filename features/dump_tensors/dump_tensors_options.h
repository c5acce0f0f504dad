// DumpTensors: tensors to disk. Options and description; no LibTorch.
#pragma once

#include "hooks/config/feature_description.h"

namespace telens::features {

struct DumpTensorsOptions {
  bool high_precision = false;
  bool quantized = false;

  // From the parameters of a config::Selection, which have been validated.
  static DumpTensorsOptions from(const config::Value& parameters);
};

config::FeatureDescription dump_tensors_description();

}  // namespace telens::features
