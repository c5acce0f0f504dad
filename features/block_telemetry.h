// BlockTelemetry: reads tensors together with their codes and scales, block by block.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "core/ops/block_errors_layout.h"
#include "features/block_copies.h"
#include "features/statistics/block_sums.h"
#include "hooks/feature_registry.h"
#include "hooks/scheduled_feature.h"

namespace telens::features {

class BlockTelemetry final : public ScheduledFeature {
 public:
  BlockTelemetry(const config::FeatureEntry& entry, FeatureServices& services);

  void inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                      TensorReading& reading) override;
  void step(std::int64_t iteration) override { record_all(); }
  void end() override { record_all(); }

 private:
  struct Key {
    std::int64_t iteration;
    std::string layer;
    TensorName tensor;
    ScalingMode mode;  // micro-batches may run under different recipes
    auto operator<=>(const Key&) const = default;
  };
  struct Seen {
    std::array<BlockSums, 2> copies;  // rowwise, columnwise
    CopiesDifference difference;
  };

  void log_left_out(const FeatureCall& at, TensorName tensor, std::string_view reason);
  void record(const Key& key, const Seen& seen);
  void record_copy(const Key& key, bool columnwise, const BlockSums& sums);
  void record_all();

  FeatureServices& services_;
  std::array<std::size_t, kAllTensors.size()> k_{};
  std::atomic<bool> warned_{false};
  std::mutex mutex_;  // over seen_
  std::map<Key, Seen> seen_;
};

FeatureRegistration block_telemetry();

}  // namespace telens::features
