#include "features/base_log_tensor_stats.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "features/log_tensor_stats_options.h"

namespace telens::features {
namespace {

class BaseLogTensorStats final : public ScriptDrivenFeature {
 public:
  BaseLogTensorStats(const config::FeatureEntry& entry, FeatureServices& services)
      : entry_(entry), services_(services) {}

  std::vector<NamedValue> log_tensor(const FeatureCall& at, std::string_view tensor_name,
                                     const at::Tensor& tensor,
                                     const debug::ReductionGroup& group) override {
    const config::Selection* selection = entry_.find(std::nullopt, tensor_name);
    if (selection == nullptr || !selection->schedule.due(at.iteration)) return {};
    std::vector<std::string> names;
    for (const StatisticName& name :
         LogTensorStatsOptions::from(selection->parameters).statistics) {
      names.push_back(format_statistic_name(name));
    }
    StatisticsEngine& engine = services_.statistics();
    const std::string name = fmt::format("{} {} {}", at.iteration, tensor_name, at.layer_name);
    const auto values = engine.evaluate(*engine.prepare(names), name, tensor, group);
    std::vector<NamedValue> result;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (values[i]) result.push_back({std::move(names[i]), *values[i]});
    }
    return result;
  }

 private:
  const config::FeatureEntry& entry_;
  FeatureServices& services_;
};

}  // namespace

FeatureRegistration base_log_tensor_stats(config::StatisticDescriptionsPtr defined) {
  return {base_log_tensor_stats_description(std::move(defined)),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<BaseLogTensorStats>(entry, services);
          }};
}

}  // namespace telens::features
