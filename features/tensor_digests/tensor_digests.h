// TensorDigests: records a digest of each tensor of each micro-batch.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "hooks/feature_registration.h"
#include "hooks/host_copy.h"
#include "hooks/scheduled_observer.h"
#include "hooks/stream_order.h"

namespace telens::features {

class TensorDigests final : public ScheduledObserver {
 public:
  TensorDigests(const config::FeatureEntry& entry, FeatureServices& services)
      : ScheduledObserver(entry, {.inspect = true, .read_statistics = false}),
        services_(services) {}

  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;
  void step(std::int64_t iteration) override { record_arrived(Waiting::no); }
  void end() override { record_arrived(Waiting::yes); }

 private:
  struct Item {
    std::int64_t iteration = 0;
    std::string layer;
    TensorName tensor = TensorName::activation;
    int call = 0;  // within the iteration
  };

  // Records digests that have reached the host.
  void record_arrived(Waiting waiting);

  FeatureServices& services_;
  Arrivals<std::vector<Item>> arrivals_;
  std::mutex mutex_;  // guards the members below
  std::vector<Item> items_;
  std::vector<TensorHandle> digests_;
  StreamSet streams_;  // the streams that computed them
  std::int64_t counted_iteration_ = -1;
  std::map<std::tuple<std::string, TensorName>, int> calls_;  // in counted_iteration_
};

FeatureRegistration tensor_digests();

}  // namespace telens::features
