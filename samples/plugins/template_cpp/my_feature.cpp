// MyFeature: logs the percentage of a tensor's elements that are larger than a threshold.
//
// Replace the measured quantity with your own. docs/plugins.md explains the parts.
#include <cmath>
#include <memory>
#include <vector>

#include "hooks/plugin_abi.h"

namespace {

using namespace telens;

// Help, documentation and the checks of the configuration are generated from this description.
config::FeatureDescription description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "MyFeature",
      .summary = "percentage of elements beyond a threshold",
      .example =
          "MyFeature:\n"
          "  enabled: True\n"
          "  tensors: [activation]\n"
          "  threshold: 2.5\n",
      .selects = config::Selects::tensors,
      .tensors = config::all_tensor_names(),
      .parameters = {{.name = "threshold",
                      .type = config::ParameterType::number,
                      .default_value = 1.0,
                      .doc = "magnitude that an element has to exceed"}},
  };
}

// One instance serves all layers of a section. The base class answers the routing calls from the
// section's selection and schedule. It counts by itself and requests no statistics, which would be
// reduced over ranks.
class MyFeature final : public ScheduledObserver {
 public:
  MyFeature(const config::FeatureEntry& entry, FeatureServices& services)
      : ScheduledObserver(entry, {.inspect = true, .read_statistics = false}),
        services_(services) {}

  // Called once per micro-batch for each selected tensor, possibly on several threads. It must not
  // change the tensor.
  void observe_tensor(const FeatureCall& at, const ObservedTensor& call, TensorReading&) override {
    if (!call.tensor.defined() || call.tensor.numel() == 0) return;
    const config::Value& parameters = selection(std::nullopt, call.tensor_name)->parameters;
    const double threshold = parameters.find("threshold")->as_number();
    const std::vector<double> values = tensor_ops::to_doubles(call.tensor);
    double beyond = 0;
    for (const double value : values) beyond += std::abs(value) > threshold ? 1 : 0;
    const Series& series = services_.series().find_or_add(
        {.layer = at.layer_name, .tensor = get_name(call.tensor_name), .statistic = "beyond%"});
    services_.record({at.iteration, &series, 100 * beyond / static_cast<double>(values.size())});
  }

 private:
  FeatureServices& services_;
};

}  // namespace

TELENS_PLUGIN(plugin) {
  plugin.add({description(), [](const config::FeatureEntry& entry, FeatureServices& services) {
                return std::make_unique<MyFeature>(entry, services);
              }});
}
