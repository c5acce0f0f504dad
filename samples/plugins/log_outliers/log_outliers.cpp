// A user-defined feature: LogOutliers logs the percentage of a tensor's elements that are larger
// than `factor` times its root mean square. A tensor's single scale must cover its outliers, at the
// cost of the other elements.
#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "hooks/plugin.h"

namespace {

using namespace telens;

config::FeatureDescription description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "LogOutliers",
      .summary = "percentage of elements far beyond the root mean square",
      .doc = "Logs `outliers%`: the percentage of elements with |x| > factor * rms(x).",
      .example =
          "LogOutliers:\n"
          "  enabled: True\n"
          "  tensors: [activation, gradient]\n"
          "  factor: 6\n",
      .selects = config::Selects::tensors,
      .tensors = config::all_tensor_names(),
      .parameters = {{.name = "factor",
                      .type = config::ParameterType::number,
                      .default_value = 6.0,
                      .doc = "how many root mean squares are far"}},
  };
}

// The base class answers the routing calls from the selection and schedule of the configuration.
// This feature requests no statistics, so it causes no collective.
class LogOutliers final : public ScheduledFeature {
 public:
  LogOutliers(const config::FeatureEntry& entry, FeatureServices& services)
      : ScheduledFeature(entry, {.inspect = true, .read_statistics = false}), services_(services) {}

  // Called for every micro-batch, possibly on several threads. Counts are summed until the step.
  void inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                      TensorReading&) override {
    if (call.tensor == nullptr || call.tensor->numel() == 0) return;
    const double factor =
        selection(std::nullopt, call.tensor_name)->parameters.find("factor")->as_number();
    const at::Tensor magnitude = call.tensor->to(at::kFloat).abs();
    const at::Tensor limit = magnitude.square().mean().sqrt() * factor;
    const Series& series = services_.series().find_or_add(
        {.layer = at.layer_name, .tensor = get_name(call.tensor_name), .statistic = "outliers%"});
    const std::lock_guard lock(mutex_);
    Count& count = counts_[{at.iteration, series.index, &series}];
    count.outliers += magnitude.gt(limit).sum().item<std::int64_t>();
    count.elements += call.tensor->numel();
  }

  void step(std::int64_t) override { record_all(); }
  void end() override { record_all(); }

 private:
  struct Count {
    std::int64_t outliers = 0;
    std::int64_t elements = 0;
  };
  using Key = std::tuple<std::int64_t, std::uint32_t, const Series*>;

  void record_all() {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, count] : counts_) {
      const auto& [iteration, index, series] = key;
      services_.record(
          {iteration, series,
           100.0 * static_cast<double>(count.outliers) / static_cast<double>(count.elements)});
    }
    counts_.clear();
  }

  FeatureServices& services_;
  std::mutex mutex_;  // guards counts_
  std::map<Key, Count> counts_;
};

}  // namespace

TELENS_PLUGIN(plugin) {
  plugin.add({description(), [](const config::FeatureEntry& entry, FeatureServices& services) {
                return std::make_unique<LogOutliers>(entry, services);
              }});
}
