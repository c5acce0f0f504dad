#include "features/online_diagnosis/online_diagnosis_options.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "analysis/rules.h"
#include "hooks/config/selection.h"
#include "hooks/config/suggestions.h"

namespace telens::features {
namespace {

using analysis::Action;
using config::ErrorList;
using config::Value;

constexpr std::string_view kActions = "actions";
constexpr std::string_view kOthers = "others";
constexpr std::string_view kPercentOfTime = "percent_of_time";
constexpr double kPercentByDefault = 3;
constexpr double kLeastPercent = 0.001;  // a look of a second is followed by a day without one

constexpr std::array kActionNames{
    std::pair{std::string_view("ignore"), Action::ignore},
    std::pair{std::string_view("tell"), Action::tell},
    std::pair{std::string_view("veto"), Action::veto},
    std::pair{std::string_view("stop"), Action::stop},
};

std::vector<std::string> action_names() {
  std::vector<std::string> names;
  for (const auto& [name, action] : kActionNames) names.emplace_back(name);
  return names;
}

std::vector<std::string> cause_names() {
  std::vector<std::string> names;
  for (const analysis::Rule& rule : analysis::rules()) names.emplace_back(rule.cause);
  names.emplace_back(kOthers);
  return names;
}

std::optional<Action> action_named(const Value& value) {
  if (!value.is_string()) return std::nullopt;
  const auto found = std::ranges::find(kActionNames, std::string_view(value.as_string()),
                                       [](const auto& each) { return each.first; });
  return found == kActionNames.end() ? std::nullopt : std::optional(found->second);
}

void check_actions(const Value& value, ErrorList& errors) {
  static const std::vector<std::string> kCauses = cause_names();
  for (const config::MapEntry& entry : value.as_map()) {
    if (std::ranges::find(kCauses, entry.key) == kCauses.end()) {
      errors.add(
          entry.key_location,
          "'{}': there is no cause '{}'{}; expected '{}' or a cause from `telens diagnose --rules`",
          kActions, entry.key, config::suggestion(entry.key, kCauses), kOthers);
    }
    if (!action_named(entry.value)) {
      errors.add(entry.value.location(), "'{}': the action of '{}' must be one of {}, not {}",
                 kActions, entry.key, config::quoted_list(action_names()),
                 config::describe(entry.value));
    }
  }
}

void check_percent(const Value& value, ErrorList& errors) {
  const double percent = value.as_number();
  if (percent >= kLeastPercent && percent <= 100) return;
  errors.add(value.location(), "'{}' must be from {} to 100, not {}", kPercentOfTime, kLeastPercent,
             percent);
}

config::OptionsPtr parse_options(const Value& parameters, ErrorList&) {
  OnlineDiagnosisOptions options;
  if (const Value* actions = parameters.find(kActions)) {
    for (const config::MapEntry& entry : actions->as_map()) {
      const Action action = action_named(entry.value).value_or(Action::tell);
      if (entry.key == kOthers) {
        options.of_others = action;
      } else {
        options.actions.emplace(entry.key, action);
      }
    }
  }
  options.share = parameters.find(kPercentOfTime)->as_number() / 100;
  return config::make_options(std::move(options));
}

std::vector<config::Parameter> parameters() {
  return {
      {.name = std::string(kActions),
       .type = config::ParameterType::map,
       .doc = "action for a finding, by its cause (docs/diagnosis_rules.md lists them), and for\n"
              "      `others`: ignore, tell, veto (debug.checkpoint_allowed() returns False from "
              "then\n"
              "      on) or stop (step() raises RunStopped). Default: tell",
       .validate = check_actions},
      {.name = std::string(kPercentOfTime),
       .type = config::ParameterType::number,
       .default_value = Value(kPercentByDefault),
       .doc = "maximum share of the time that looks take: after each look its thread pauses\n"
              "      accordingly, regardless of `freq`",
       .validate = check_percent},
  };
}

}  // namespace

Action OnlineDiagnosisOptions::get_action(std::string_view cause) const {
  const auto found = actions.find(cause);
  return found == actions.end() ? of_others : found->second;
}

bool OnlineDiagnosisOptions::may(Action action) const {
  return of_others >= action ||
         std::ranges::any_of(actions, [&](const auto& each) { return each.second >= action; });
}

config::FeatureDescription online_diagnosis_description() {
  return {
      .feature_namespace = std::string(config::kTelensNamespace),
      .name = "Diagnosis",
      .summary =
          "Runs telens diagnose during the training; can warn, veto checkpoints or stop the run",
      .doc =
          "Every `freq` iterations a thread reads the run file written so far and applies all "
          "rules of\n"
          "`telens diagnose` to the section's layers and to the run as a whole. Each finding is "
          "reported\n"
          "once: as a warning, an event of the run file, the scalar `findings` for loggers, and "
          "to\n"
          "functions passed to debug.on_finding(). The feature records nothing itself: enable "
          "other\n"
          "features that do, as in configs/flight_recorder.yaml. step() never waits for the "
          "thread.\n"
          "A finding that begins in the last recorded iteration is reported by the next look; the "
          "end of\n"
          "the session runs a last look. Each rank reads its own file; a veto or a stop applies to "
          "all\n"
          "ranks.",
      .example =
          "Diagnosis:\n"
          "  enabled: True\n"
          "  freq: 100\n"
          "  actions: {nonfinite: stop, wrong_scale: veto, loss_spike: ignore}\n",
      .parameters = parameters(),
      .parse = parse_options,
      .recorded = config::nothing_recorded,
  };
}

}  // namespace telens::features
