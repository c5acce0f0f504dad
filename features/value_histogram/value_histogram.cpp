// ValueHistogram: counts a tensor's values over the micro-batches of an iteration.
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "features/builtin_features.h"
#include "features/value_histogram/value_histogram_options.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"
#include "hooks/statistics/histogram.h"
#include "hooks/streams.h"
#include "hooks/tensor_ops.h"

namespace telens::features {
namespace {

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

FormatId get_format(DType dtype) {
  if (dtype == DType::bfloat16) return FormatId::bf16;
  return dtype == DType::float16 ? FormatId::fp16 : FormatId::fp32;
}

tensor_ops::Bins to_bins(HistogramBins bins) {
  return bins == HistogramBins::codes ? tensor_ops::Bins::codes : tensor_ops::Bins::exponents;
}

// Returns the bins that have elements.
HistogramRow get_row(std::int64_t iteration, const Series& series, const TensorHandle& counts) {
  const auto* data = counts.const_data_ptr<std::int64_t>();
  HistogramRow row;
  row.iteration = iteration;
  row.series = &series;
  for (std::int64_t bin = 0; bin < counts.numel(); ++bin) {
    if (data[bin] == 0) continue;
    row.bins.push_back({static_cast<std::int32_t>(bin), static_cast<std::uint64_t>(data[bin])});
    row.elements += data[bin];
  }
  return row;
}

}  // namespace

ValueHistogram::ValueHistogram(const config::FeatureEntry& entry, FeatureServices& services)
    : ScheduledObserver(entry, {.inspect = true, .read_statistics = false}), services_(services) {
  for (const TensorName tensor : kAllTensors) {
    const config::Selection* chosen = selection(std::nullopt, tensor);
    if (chosen == nullptr) continue;
    bins_[static_cast<std::size_t>(tensor)] = chosen->options_as<ValueHistogramOptions>().bins;
  }
}

// Warns only once, because a model has hundreds of such tensors.
void ValueHistogram::log_left_out(const FeatureCall& at, std::string_view text) {
  const bool first = !warned_.exchange(true);
  services_.log_message(
      fmt::format("ValueHistogram: {}{}", text, first ? "; the log names all such tensors" : ""),
      at.layer_name, first ? debug::LogLevel::warning : debug::LogLevel::info);
}

HistogramName ValueHistogram::name_for(const FeatureCall& at, TensorName tensor, DType dtype) {
  HistogramName name{bins_[static_cast<std::size_t>(tensor)], get_format(dtype)};
  if (name.bins == HistogramBins::codes && name.format == FormatId::fp32) {
    log_left_out(at, fmt::format("{} is FP32, which has too many codes to count: its exponents "
                                 "are counted",
                                 telens::get_name(tensor)));
    name.bins = HistogramBins::exponent;
  }
  return name;
}

void ValueHistogram::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                                    TensorReading& reading) {
  const bool counted = call.tensor_name == TensorName::weight && !call.first_microbatch;
  if (counted) return;
  if (!call.tensor.defined()) {
    log_left_out(at, fmt::format("{} is not counted: it is stored in low precision, the "
                                 "high-precision tensor does not exist",
                                 telens::get_name(call.tensor_name)));
    return;
  }
  const HistogramName name = name_for(at, call.tensor_name, call.tensor.dtype());
  TensorHandle counts;
  {
    const std::lock_guard lock(mutex_);
    const auto [entry, is_new] =
        counts_.try_emplace({at.iteration, std::string(at.layer_name), call.tensor_name, name});
    if (call.tensor_name == TensorName::weight && !is_new) return;  // only the first read counts
    if (is_new)
      entry->second = tensor_ops::empty_histogram(to_bins(name.bins), call.tensor.device());
    counts = entry->second;
  }
  tensor_ops::count_values(to_bins(name.bins), call.tensor, counts);
}

void ValueHistogram::record(const Key& key, const TensorHandle& counts) {
  const std::string statistic = format_histogram_name(key.name);
  const Series& series = services_.series().find_or_add(
      {.layer = key.layer, .tensor = telens::get_name(key.tensor), .statistic = statistic});
  HistogramRow row = get_row(key.iteration, series, counts);
  if (row.elements > 0) services_.record_histogram(std::move(row));
}

void ValueHistogram::record_arrived(Waiting waiting) {
  std::map<Key, TensorHandle> counts;
  {
    const std::lock_guard lock(mutex_);
    counts.swap(counts_);
  }
  std::vector<Key> keys;
  std::vector<TensorHandle> tensors;
  for (auto& [key, each] : counts) {
    keys.push_back(key);
    tensors.push_back(std::move(each));
  }
  if (!keys.empty()) arrivals_.add(std::move(tensors), std::move(keys));
  for (const auto& [of, arrived] : arrivals_.take(waiting)) {
    for (std::size_t i = 0; i < of.size(); ++i) record(of[i], arrived[i]);
  }
}

FeatureRegistration value_histogram() {
  return {value_histogram_description(),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<ValueHistogram>(entry, services);
          }};
}

}  // namespace telens::features
