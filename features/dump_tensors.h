// DumpTensors: what a GEMM saw, in a file each.
#pragma once

#include <array>

#include "features/dump_tensors_options.h"
#include "hooks/feature_registry.h"
#include "hooks/scheduled_feature.h"

namespace telens::features {

class DumpTensors final : public ScheduledFeature {
 public:
  DumpTensors(const config::FeatureEntry& entry, FeatureServices& services);

  // Writes before it returns. Throws RecordError where the disk does not take it: the session then
  // warns and switches the feature off.
  void inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                      TensorReading& reading) override;

 private:
  // What the options ask for and this tensor does not have, into the log.
  void say_what_is_missing(const FeatureCall& at, const InspectTensorCall& call,
                           const DumpTensorsOptions& options);

  FeatureServices& services_;
  std::array<DumpTensorsOptions, kAllTensors.size()> options_;
};

FeatureRegistration dump_tensors();

}  // namespace telens::features
