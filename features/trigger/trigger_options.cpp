#include "features/trigger/trigger_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "features/log_stats/log_stats_options.h"
#include "hooks/config/section_keys.h"
#include "hooks/config/selection.h"

namespace telens::features {
namespace {

using config::ErrorList;
using config::Value;

constexpr std::string_view kWhen = "when";
constexpr std::string_view kStop = "stop";
constexpr std::string_view kMaxFirings = "max_firings";
constexpr std::string_view kCooldown = "cooldown";

using Conditions = std::vector<Condition>;

// Larger than the number of iterations of any run. Adding an iteration does not overflow.
constexpr std::int64_t kMost = 1'000'000'000'000;
// A tebibyte.
constexpr std::int64_t kMostMebibytes = std::int64_t{1} << 20;

config::Parameter whole_number(std::string_view name, std::int64_t least, std::string doc,
                               Value default_value = {}) {
  return {.name = std::string(name),
          .type = config::ParameterType::integer,
          .default_value = std::move(default_value),
          .doc = std::move(doc),
          .validate = [name, least](const Value& value, ErrorList& errors) {
            const std::int64_t number = value.as_integer();
            if (number < least) {
              errors.add(value.location(), "'{}' must be at least {}, not {}", name, least, number);
            }
            const std::int64_t most = name == config::kMostMebibytes ? kMostMebibytes : kMost;
            if (number > most) {
              errors.add(value.location(), "'{}' must be at most {}, not {}", name, most, number);
            }
          }};
}

std::optional<std::int64_t> get_integer(const Value& parameters, std::string_view name) {
  const Value* value = parameters.find(name);
  return value == nullptr ? std::nullopt : std::optional(value->as_integer());
}

// Records the statistics of the conditions, with the counters that are recorded with any statistic.
std::vector<std::string> recorded_by(const config::Selection& selection) {
  std::vector<std::string> names;
  for (const TensorName tensor : kAllTensors) {
    std::vector<StatisticName> statistics;
    for (const Condition& condition : selection.options_as<TriggerOptions>().when) {
      const std::vector<TensorName> tensors = get_tensors(condition);
      if (std::ranges::find(tensors, tensor) == tensors.end()) continue;
      statistics.push_back(*condition.statistic);
    }
    if (statistics.empty()) continue;
    for (const std::string& each : recorded_names(statistics, telens::get_name(tensor))) {
      names.push_back(fmt::format("{} {}", telens::get_name(tensor), each));
    }
  }
  return names;
}

std::vector<config::Parameter> parameters(config::StatisticDescriptionsPtr plugin) {
  return {
      {.name = std::string(kWhen),
       .type = config::ParameterType::list,
       .required = true,
       .doc = "conditions, any of which fires:\n"
              "      '<statistic> [of <tensor>] > 0.1', also >=, < and <=;\n"
              "      'scale_inv jumps > 8x', also drops;\n"
              "      'loss spikes > 2x [median|mean [of 50]]';\n"
              "      'recorded <name> > 3', which the program records by debug.record()",
       .parse =
           [plugin = std::move(plugin)](const Value& value, ErrorList& errors) {
             return config::make_options(Conditions{parse_conditions(value, errors, plugin.get())});
           }},
      whole_number(config::kStart, 1,
                   "number of iterations that sections with `started_by:` this section run"),
      whole_number(config::kWriteLast, 1,
                   "number of iterations of sections with `kept_by:` this section that are kept\n"
                   "      in memory and written when it fires"),
      whole_number(
          config::kOperands, 1,
          "number of elements that are also kept from each activation, weight and\n"
          "      gradient of the section's layers in the iterations of `write_last`.\n"
          "      Written to <log_dir>/tensor_dumps/rank_<r>/iter_<000000>/<section>_operands.h5"),
      whole_number(
          config::kMostMebibytes, 1,
          "MiB of memory for the records of `write_last`, and as much for `operands`. If it\n"
          "      is full, the earliest iterations are dropped, and the firing reports it",
          Value(config::kMostMebibytesByDefault)),
      {.name = std::string(kStop),
       .type = config::ParameterType::boolean,
       .default_value = Value(false),
       .doc = "stops the run: step() throws RunStopped"},
      whole_number(kMaxFirings, 1, "maximum number of firings; afterwards nothing is checked",
                   Value(1)),
      whole_number(kCooldown, 0, "iterations after a firing in which it does not fire again",
                   Value(0)),
  };
}

void check_operands(const Value& parameters, ErrorList& errors) {
  const Value* operands = parameters.find(config::kOperands);
  if (operands == nullptr || parameters.find(config::kWriteLast) != nullptr) return;
  errors.add(operands->location(), "'{}' needs '{}: <iterations>' to keep them", config::kOperands,
             config::kWriteLast);
}

config::OptionsPtr parse_options(const config::ParameterValues& parameters,
                                 const config::StatisticDescriptionsPtr& plugin) {
  const config::OptionsPtr when = parameters.made(kWhen);
  return config::make_options(
      TriggerOptions{.when = config::get_options<Conditions>(*when),
                     .plugin = plugin,
                     .start = get_integer(parameters, config::kStart),
                     .write_last = get_integer(parameters, config::kWriteLast),
                     .operands = get_integer(parameters, config::kOperands),
                     .most_mebibytes = *get_integer(parameters, config::kMostMebibytes),
                     .stop = parameters.find(kStop)->as_bool(),
                     .max_firings = *get_integer(parameters, kMaxFirings),
                     .cooldown = *get_integer(parameters, kCooldown)});
}

}  // namespace

config::FeatureDescription trigger_description(config::StatisticDescriptionsPtr plugin) {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "Trigger",
      .summary = "starts other sections, writes kept records or stops the run if a condition holds",
      .doc =
          "At the end of each due iteration, checks statistics of the section's layers, the loss\n"
          "and other numbers that the program records. If a condition holds, it fires: it\n"
          "reports the condition in a warning and in the run file, and performs the actions of\n"
          "its parameters. Statistics that no other feature requests are requested and recorded\n"
          "by the trigger. NaN satisfies every condition. On several ranks, it fires on all of\n"
          "them, at the end of the iteration after the one in which the condition held on any\n"
          "rank.",
      .example =
          "Trigger:\n"
          "  enabled: True\n"
          "  when: [loss spikes > 2x, nonfinite of gradient > 0]\n"
          "  stop: True\n",
      .parameters = parameters(plugin),
      .names_statistics = true,
      .fires = true,
      .validate = check_operands,
      .parse = [plugin](const config::ParameterValues& parameters,
                        ErrorList&) { return parse_options(parameters, plugin); },
      .recorded = recorded_by,
  };
}

}  // namespace telens::features
