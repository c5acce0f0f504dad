// A plugin that does not use LibTorch: a feature that logs the largest magnitude of a tensor, and a
// statistic of its own.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "hooks/plugin_abi.h"

namespace {

using namespace telens;

class LargestMagnitude final : public ScheduledObserver {
 public:
  LargestMagnitude(const config::FeatureEntry& entry, FeatureServices& services)
      : ScheduledObserver(entry, {.inspect = true, .read_statistics = false}),
        services_(services) {}

  void observe_tensor(const FeatureCall& at, const ObservedTensor& call, TensorReading&) override {
    if (!call.tensor.defined() || call.tensor.numel() == 0) return;
    double largest = 0;
    for (const double value : tensor_ops::to_doubles(call.tensor)) {
      largest = std::max(largest, std::abs(value));
    }
    const Series& series = services_.series().find_or_add(
        {.layer = at.layer_name, .tensor = get_name(call.tensor_name), .statistic = "largest"});
    services_.record({at.iteration, &series, largest});
  }

 private:
  FeatureServices& services_;
};

// Counts the elements.
class Elements final : public StatisticFunctions {
 public:
  TensorHandle compute_sums(const TensorHandle& tensor) const override {
    TensorHandle sums = TensorHandle::on_host(DType::float64, {1});
    *sums.mutable_data_ptr<double>() = static_cast<double>(tensor.numel());
    return sums;
  }
  double finish(std::span<const double> sums) const override { return sums[0]; }
};

}  // namespace

TELENS_PLUGIN(plugin) {
  config::FeatureDescription description;
  description.feature_namespace = std::string(config::kTelensNamespace);
  description.name = "LargestMagnitude";
  description.selects = config::Selects::tensors;
  description.tensors = config::all_tensor_names();
  plugin.add({description, [](const config::FeatureEntry& entry, FeatureServices& services) {
                return std::make_unique<LargestMagnitude>(entry, services);
              }});
  plugin.add({{.name = "elements", .doc = "number of elements", .words = 1},
              std::make_shared<Elements>()});
}
