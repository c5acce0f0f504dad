#include "features/log_stats/log_tensor_stats.h"

#include <memory>
#include <string>
#include <utility>

#include "features/log_stats/log_fp8_tensor_stats_options.h"
#include "features/log_stats/log_nvfp4_tensor_stats_options.h"
#include "features/log_stats/log_tensor_stats_options.h"

namespace telens::features {
namespace {

template <typename Options>
std::vector<StatisticName> statistics_of(const config::Value& parameters) {
  return Options::from(parameters).statistics;
}

template <typename Options>
FeatureRegistration registration(config::FeatureDescription description) {
  return {std::move(description), [](const config::FeatureEntry& entry, FeatureServices& services) {
            return std::make_unique<LogStatistics>(entry, services, statistics_of<Options>);
          }};
}

}  // namespace

LogStatistics::LogStatistics(const config::FeatureEntry& entry, FeatureServices& services,
                             Parse parse)
    : ScheduledFeature(entry, {.inspect = true}), services_(services) {
  for (const TensorName tensor : kAllTensors) {
    const config::Selection* chosen = selection(std::nullopt, tensor);
    if (chosen == nullptr) continue;
    std::vector<std::string> names;
    for (const StatisticName& name : parse(chosen->parameters)) {
      names.push_back(format_statistic_name(name));
    }
    requests_[static_cast<std::size_t>(tensor)] = services.statistics().prepare(names);
  }
}

void LogStatistics::inspect_tensor(const FeatureCall& at, const InspectTensorCall& call,
                                   TensorReading& reading) {
  const auto left_out = reading.want(*requests_[static_cast<std::size_t>(call.tensor_name)]);
  if (!left_out) return;
  // One warning; a model has hundreds of such tensors.
  const bool first = !warned_.exchange(true);
  services_.log_message(fmt::format("{}: {} is not logged: {}{}", entry().description->name,
                                    telens::name_of(call.tensor_name), *left_out,
                                    first ? "; the log names all such tensors" : ""),
                        at.layer_name, first ? debug::LogLevel::warning : debug::LogLevel::info);
}

FeatureRegistration log_tensor_stats(config::StatisticDescriptionsPtr defined) {
  return registration<LogTensorStatsOptions>(log_tensor_stats_description(std::move(defined)));
}

FeatureRegistration log_fp8_tensor_stats() {
  return registration<LogFp8TensorStatsOptions>(log_fp8_tensor_stats_description());
}

FeatureRegistration log_nvfp4_tensor_stats() {
  return registration<LogNvfp4TensorStatsOptions>(log_nvfp4_tensor_stats_description());
}

}  // namespace telens::features
