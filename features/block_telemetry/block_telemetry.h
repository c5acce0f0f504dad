// BlockTelemetry: reads tensors together with their codes and scales, block by block.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/statistics_layout.h"
#include "hooks/engine/tensor_observation.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"
#include "hooks/statistics/accumulator.h"
#include "hooks/streams.h"

namespace telens::features {

class BlockTelemetry final : public ScheduledObserver {
 public:
  BlockTelemetry(const config::FeatureEntry& entry, FeatureServices& services,
                 HostCopies copies = copy_to_host);

  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;
  void step(std::int64_t iteration) override { record_arrived(Waiting::no); }
  void end() override { record_arrived(Waiting::yes); }

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
    int under_way = 0;  // reads whose results have not arrived on the host
  };
  // One read of a tensor. Its results arrive on the host: the errors and bins of each copy and, if
  // there are two copies in the same format and mode, their difference.
  struct Look {
    Key key;
    std::vector<bool> columnwise;  // per copy: true for the columnwise one
  };

  void log_left_out(const FeatureCall& at, TensorName tensor, std::string_view reason);
  void record(const Key& key, const Seen& seen);
  void record_copy(const Key& key, bool columnwise, const BlockSums& sums);
  void add_arrived(Waiting waiting);  // requires the lock
  void record_arrived(Waiting waiting);

  FeatureServices& services_;
  std::array<std::size_t, kAllTensors.size()> k_{};
  std::atomic<bool> warned_{false};
  std::mutex mutex_;  // guards the members below
  Arrivals<Look> arrivals_;
  std::map<Key, Seen> seen_;
};

}  // namespace telens::features
