#include "features/log_stats/log_stats.h"

#include <memory>
#include <utility>

#include "features/log_stats/log_stats_options.h"

namespace telens::features {
namespace {

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

}  // namespace telens::features
