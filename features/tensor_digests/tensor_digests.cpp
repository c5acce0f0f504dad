// TensorDigests: records a digest of each tensor of each micro-batch.
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/fnv1a.h"
#include "features/builtin_features.h"
#include "features/builtin_options.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"
#include "hooks/streams.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

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

// A double holds integers of 53 bits exactly. Two tensors that differ have the same number with a
// chance of about 2^-52.
double fold(const TensorHandle& digest) {
  constexpr int kDropped = 12;
  const auto* halves = digest.const_data_ptr<std::int64_t>();
  const std::uint64_t all =
      mixed(mixed(0, static_cast<std::uint64_t>(halves[0])), static_cast<std::uint64_t>(halves[1]));
  return static_cast<double>(all >> kDropped);
}

// Returns the digest of the tensor, or of the codes and scales of a weight that is stored in FP8.
TensorHandle digest_of(const ObservedTensor& call) {
  if (call.tensor.defined()) return tensor_ops::digest(call.tensor);
  const ObservedOperand& copy = call.rowwise.defined() ? call.rowwise : call.columnwise;
  if (!copy.defined() || !copy.is_quantized()) return {};
  const QuantizedCodes data = copy.codes(/*columnwise=*/!copy.has(/*columnwise=*/false));
  return tensor_ops::append_digest(tensor_ops::digest(data.codes),
                                   tensor_ops::digest(data.scale_inv));
}

}  // namespace

void TensorDigests::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                                   TensorReading&) {
  if (call.evaluation || call.scores != nullptr) return;
  if (call.tensor_name == TensorName::weight && !call.first_microbatch) return;
  TensorHandle digest = digest_of(call);
  if (!digest.defined()) return;
  const std::lock_guard lock(mutex_);
  streams_.add(digest.device());
  if (std::exchange(counted_iteration_, at.iteration) != at.iteration) calls_.clear();
  const int number = calls_[{std::string(at.layer_name), call.tensor_name}]++;
  items_.push_back({at.iteration, std::string(at.layer_name), call.tensor_name, number});
  digests_.push_back(std::move(digest));
}

void TensorDigests::record_arrived(Waiting waiting) {
  {
    const std::lock_guard lock(mutex_);
    if (!items_.empty()) {
      streams_.join();
      arrivals_.add(std::exchange(digests_, {}), std::exchange(items_, {}));
    }
  }
  for (const auto& [items, arrived] : arrivals_.take(waiting)) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string statistic =
          items[i].call == 0 ? "digest" : fmt::format("digest.{}", items[i].call);
      const Series& series =
          services_.series().find_or_add({.layer = items[i].layer,
                                          .tensor = telens::get_name(items[i].tensor),
                                          .statistic = statistic});
      services_.record(
          {.iteration = items[i].iteration, .series = &series, .value = fold(arrived[i])});
    }
  }
}

FeatureRegistration tensor_digests() {
  return {tensor_digests_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<TensorDigests>(entry, services);
          }};
}

}  // namespace telens::features
