// ValueHistogram: counts a tensor's values over the micro-batches of an iteration.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "hooks/feature_registration.h"
#include "hooks/host_copy.h"
#include "hooks/scheduled_observer.h"
#include "hooks/statistics/histogram_name.h"

namespace telens::features {

// Reads the tensor itself, in addition to the one read for statistics; the reason is in
// docs/internals/decisions/statistics.md.
class ValueHistogram final : public ScheduledObserver {
 public:
  ValueHistogram(const config::FeatureEntry& entry, FeatureServices& services);

  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;
  void step(std::int64_t iteration) override { record_arrived(Waiting::no); }
  void end() override { record_arrived(Waiting::yes); }

 private:
  // The histogram of a layer's tensor in an iteration.
  struct Key {
    std::int64_t iteration;
    std::string layer;
    TensorName tensor;
    HistogramName name;

    friend bool operator<(const Key& a, const Key& b) {
      const auto order = [](const Key& key) {
        return std::tie(key.iteration, key.layer, key.tensor, key.name.bins, key.name.format);
      };
      return order(a) < order(b);
    }
  };

  HistogramName name_for(const FeatureCall& at, TensorName tensor, DType dtype);
  void log_left_out(const FeatureCall& at, std::string_view text);
  void record(const Key& key, const TensorHandle& counts);
  // Records counts that have reached the host.
  void record_arrived(Waiting waiting);

  FeatureServices& services_;
  std::array<HistogramBins, kAllTensors.size()> bins_{};
  std::atomic<bool> warned_{false};
  Arrivals<std::vector<Key>> arrivals_;
  std::mutex mutex_;  // guards the members below; counting does not need a lock
  std::map<Key, TensorHandle> counts_;
};

FeatureRegistration value_histogram();

}  // namespace telens::features
