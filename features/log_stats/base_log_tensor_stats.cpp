#include "features/log_stats/base_log_tensor_stats.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "features/log_stats/log_tensor_stats_options.h"

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
    const Asked& asked = asked_by(*selection);
    const std::string name = fmt::format("{} {} {}", at.iteration, tensor_name, at.layer_name);
    const auto values = services_.statistics().evaluate(*asked.request, name, tensor, group);
    std::vector<NamedValue> result;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i]) result.push_back({asked.names[i], *values[i]});
    }
    return result;
  }

 private:
  struct Asked {
    std::vector<std::string> names;
    StatisticsRequestPtr request;
  };

  // Parsed at the first call: a script may make one for each of a thousand small tensors a step.
  const Asked& asked_by(const config::Selection& selection) {
    const auto found = asked_.find(&selection);
    if (found != asked_.end()) return found->second;
    Asked asked;
    for (const StatisticName& name : LogTensorStatsOptions::from(selection.parameters).statistics) {
      asked.names.push_back(format_statistic_name(name));
    }
    asked.request = services_.statistics().prepare(asked.names);
    return asked_.emplace(&selection, std::move(asked)).first->second;
  }

  const config::FeatureEntry& entry_;
  FeatureServices& services_;
  std::map<const config::Selection*, Asked> asked_;  // by an item of the entry
};

}  // namespace

FeatureRegistration base_log_tensor_stats(config::StatisticDescriptionsPtr defined) {
  return {base_log_tensor_stats_description(std::move(defined)),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<BaseLogTensorStats>(entry, services);
          }};
}

}  // namespace telens::features
