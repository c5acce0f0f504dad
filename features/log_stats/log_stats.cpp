// LogTensorStats, LogFp8TensorStats and similar features, and ScaleHealth: they request the
// statistics that their options name from the statistics engine.
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "features/builtin_features.h"
#include "features/log_stats/log_stats_options.h"
#include "hooks/engine/one_pass_engine.h"
#include "hooks/feature_registry.h"
#include "hooks/observer.h"

namespace telens::features {
namespace {

// Statistics of selected tensors, according to their StatisticsOptions. A statistic that does not
// apply to a tensor (for example of the running recipe, if the layer runs unquantized) is skipped
// with one warning.
class LogStatistics final : public ScheduledObserver {
 public:
  LogStatistics(const config::FeatureEntry& entry, FeatureServices& services);

  bool can_be_captured() const override { return true; }

  void observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                      TensorReading& reading) override;

 private:
  FeatureServices& services_;
  std::atomic<bool> warned_{false};
  std::array<std::optional<StatisticsList>, kAllTensors.size()> requests_;
};

FeatureRegistration registration(config::FeatureDescription description) {
  return {std::move(description), [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<LogStatistics>(entry, services);
          }};
}

}  // namespace

LogStatistics::LogStatistics(const config::FeatureEntry& entry, FeatureServices& services)
    : ScheduledObserver(entry, {.inspect = true}), services_(services) {
  for (const TensorName tensor : kAllTensors) {
    const config::Selection* chosen = selection(std::nullopt, tensor);
    if (chosen == nullptr) continue;
    requests_[static_cast<std::size_t>(tensor)].emplace(
        chosen->options_as<StatisticsOptions>().statistics, /*for_loggers=*/true);
  }
}

void LogStatistics::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                                   TensorReading& reading) {
  const auto left_out = reading.want(*requests_[static_cast<std::size_t>(call.tensor_name)]);
  if (!left_out) return;
  // Warns only once, because a model has hundreds of such tensors.
  const bool first = !warned_.exchange(true);
  services_.log_message(fmt::format("{}: {} is not logged: {}{}", entry().description->name,
                                    telens::get_name(call.tensor_name), *left_out,
                                    first ? "; the log names all such tensors" : ""),
                        at.layer_name, first ? debug::LogLevel::warning : debug::LogLevel::info);
}

FeatureRegistration log_tensor_stats(config::StatisticDescriptionsPtr plugin) {
  return registration(log_tensor_stats_description(std::move(plugin)));
}

std::vector<FeatureRegistration> log_low_precision_stats() {
  std::vector<FeatureRegistration> registrations;
  for (config::FeatureDescription& each : low_precision_stats_descriptions()) {
    registrations.push_back(registration(std::move(each)));
  }
  return registrations;
}

FeatureRegistration scale_health() { return registration(scale_health_description()); }

namespace {

class BaseLogTensorStats final : public ScriptDrivenFeature {
 public:
  BaseLogTensorStats(const config::FeatureEntry& entry, FeatureServices& services)
      : entry_(entry), services_(services) {
    for (const config::Selection& selection : entry.selections) {
      requested_.emplace_back(selection.options_as<StatisticsOptions>());
    }
  }

  std::vector<NamedValue> log_tensor(const FeatureCall& at, std::string_view tensor_name,
                                     const TensorHandle& tensor,
                                     const RankGroupPtr& group) override {
    const config::Selection* selection = entry_.find(std::nullopt, tensor_name);
    if (selection == nullptr || !selection->schedule.due(at.iteration, thinning_factor()))
      return {};
    const RequestedStatistics& requested =
        requested_[static_cast<std::size_t>(selection - entry_.selections.data())];
    const auto values = services_.statistics().evaluate(
        requested.request, {at.iteration, tensor_name, at.layer_name}, tensor, group);
    std::vector<NamedValue> result;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i]) result.push_back({requested.names[i], *values[i]});
    }
    return result;
  }

 private:
  struct RequestedStatistics {
    explicit RequestedStatistics(const StatisticsOptions& options)
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
  std::vector<RequestedStatistics> requested_;  // one per selection of the entry
};

}  // namespace

FeatureRegistration base_log_tensor_stats(config::StatisticDescriptionsPtr defined) {
  return {base_log_tensor_stats_description(std::move(defined)),
          [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<BaseLogTensorStats>(entry, services);
          }};
}

}  // namespace telens::features
