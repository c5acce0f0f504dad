#include "features/log_stats/base_log_tensor_stats.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "features/log_stats/log_stats_options.h"
#include "hooks/engine/statistics_list.h"

namespace telens::features {
namespace {

class BaseLogTensorStats final : public ScriptDrivenFeature {
 public:
  BaseLogTensorStats(const config::FeatureEntry& entry, FeatureServices& services)
      : entry_(entry), services_(services) {
    for (const config::Selection& selection : entry.selections) {
      asked_.emplace_back(selection.options_as<StatisticsOptions>());
    }
  }

  std::vector<NamedValue> log_tensor(const FeatureCall& at, std::string_view tensor_name,
                                     const TensorHandle& tensor,
                                     const RankGroupPtr& group) override {
    const config::Selection* selection = entry_.find(std::nullopt, tensor_name);
    if (selection == nullptr || !selection->schedule.due(at.iteration, thinning_factor()))
      return {};
    const Asked& asked = asked_[static_cast<std::size_t>(selection - entry_.selections.data())];
    const auto values = services_.statistics().evaluate(
        asked.request, {at.iteration, tensor_name, at.layer_name}, tensor, group);
    std::vector<NamedValue> result;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i]) result.push_back({asked.names[i], *values[i]});
    }
    return result;
  }

 private:
  struct Asked {
    explicit Asked(const StatisticsOptions& options)
        : request(options.statistics, /*for_loggers=*/true) {
      for (const StatisticName& name : options.statistics) {
        names.push_back(format_statistic_name(name));
      }
    }

    StatisticsList request;
    std::vector<std::string> names;
  };

  const config::FeatureEntry& entry_;
  FeatureServices& services_;
  std::vector<Asked> asked_;  // one per selection of the entry
};

}  // namespace

FeatureRegistration base_log_tensor_stats(config::StatisticDescriptionsPtr defined) {
  return {base_log_tensor_stats_description(std::move(defined)),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<BaseLogTensorStats>(entry, services);
          }};
}

}  // namespace telens::features
