#include "hooks/session/feature_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hooks/config/config.h"
#include "hooks/config/suggestions.h"
#include "hooks/observer.h"

namespace telens::debug {

// ---- isolation

std::string make_context(const FeatureInstance& feature, std::string_view layer_name,
                         std::string_view call_name) {
  return fmt::format("{} in layer '{}', {}", feature.title(), layer_name, call_name);
}

void ObserverIsolation::observe_tensors(FeatureInstance& feature, const Shown& shown,
                                        const Show& show, const std::function<void()>& call) {
  const auto& [layer_name, call_name, device] = shown;
  if (!feature.observes.load(std::memory_order_relaxed)) return;
  if (!feature.is_foreign() || !device) return observe(feature, layer_name, call_name, call);
  RandomState random(device);
  bool was_written = false;
  {
    MutationGuard guard;
    show(guard);
    observe(feature, layer_name, call_name, call);
    was_written = guard.was_written();
  }
  if (random.restore()) tell_of_randomness(feature, layer_name, call_name);
  if (!was_written) return;
  switch_off(
      feature, layer_name, call_name,
      "it wrote to a tensor that it may only read; the old values are lost, and the training "
      "continues with the new ones; work on a copy (tensor.clone())");
}

void ObserverIsolation::tell_of_randomness(FeatureInstance& feature, std::string_view layer_name,
                                           std::string_view call_name) {
  if (feature.told_of_randomness.exchange(true)) return;
  events_.announce(
      "feature_random",
      fmt::format("{}: it drew from torch's random number generator, whose state is restored each "
                  "time; use a separate torch.Generator in the feature",
                  make_context(feature, layer_name, call_name)),
      layer_name);
}

void ObserverIsolation::switch_off(FeatureInstance& feature, std::string_view layer_name,
                                   std::string_view call_name) {
  switch_off(feature, layer_name, call_name, message_of_current_exception());
}

void ObserverIsolation::switch_off(FeatureInstance& feature, std::string_view layer_name,
                                   std::string_view call_name, const std::string& reason) {
  if (!feature.observes.exchange(false)) return;
  events_.announce(
      "feature_off",
      fmt::format("{}: {}; it is disabled for the rest of the session, and the training continues",
                  make_context(feature, layer_name, call_name), reason),
      layer_name);
}

// ---- the features

namespace {

// A budget makes a feature run less often, which must not change the computed results.
void check_budget(const FeatureInstance& instance) {
  const RoutingCalls calls = instance.feature->routing_calls();
  if (instance.section->budget() == nullptr || (!calls.modify && !calls.fp8_gemm)) return;
  raise<ConfigError>(
      "{}: section '{}': {} may change results (it implements modify_tensor_enabled or "
      "fp8_gemm_enabled); a section with a '{}' may only observe",
      to_string(instance.entry->location), instance.entry->section, instance.entry->written_name,
      config::kBudget);
}

}  // namespace

void FeatureSet::make(const config::Config& config, const FeatureRegistry& registry,
                      FeatureServices& services, ObserverIsolation& guard, EventLog& events,
                      bool budgets_off) {
  config_ = &config;
  sections_.emplace(config);
  sections_->make_budgets(
      [&events](const std::string& text) { events.announce("budget", text, {}, LogLevel::info); },
      budgets_off ? SectionBudget::Switch::off : SectionBudget::Switch::on);
  if (budgets_off && !sections_->with_budget().empty()) {
    std::vector<std::string> names;
    for (const SectionState* state : sections_->with_budget()) names.push_back(state->name());
    events.message_of_run(
        fmt::format("{}=off: features run in all of their iterations, without the budget of {}",
                    config::kBudgetVariable, config::quoted_list(names)),
        LogLevel::warning);
  }
  for (SectionState* state : sections_->with_budget()) {
    decisions_.add(*state->budget(), {.runs = [state] { return state->runs(); },
                                      .guard = [](const auto& decide) { decide(); }});
  }
  for (const config::Section& section : config.sections()) {
    for (const config::FeatureEntry& entry : section.features) {
      instances_.push_back(std::make_unique<FeatureInstance>(&entry));
      FeatureInstance& instance = *instances_.back();
      instance.section = &sections_->state(section.name);
      instance.feature = registry.make(entry, services);
      check_budget(instance);
      if (const SectionBudget* budget = instance.section->budget()) {
        instance.feature->thin_by(budget->thinning());
      }
      if (Decider* decider = instance.feature->decider()) {
        decisions_.add(*decider, {.runs = [&instance] { return instance.section->runs(); },
                                  .guard =
                                      [&guard, &instance](const auto& decide) {
                                        guard.observe(instance, {}, "decide", decide);
                                      }});
      }
    }
  }
}

std::vector<FeatureInstance*> FeatureSet::all_for(std::string_view layer_name) const {
  std::vector<FeatureInstance*> features;
  for (const config::FeatureEntry* entry : config_->entries_for(layer_name)) {
    const auto instance =
        std::ranges::find(instances_, entry, [](const auto& each) { return each->entry; });
    features.push_back(instance->get());
  }
  return features;
}

std::vector<FeatureInstance*> FeatureSet::running(std::vector<FeatureInstance*> features) {
  std::erase_if(features, [](const FeatureInstance* each) { return !each->section->runs(); });
  return features;
}

bool FeatureSet::reads_statistics(bool of_weights, std::int64_t iteration) const {
  return std::ranges::any_of(instances_, [&](const auto& each) {
    return each->section->runs() && each->entry->due(iteration, each->feature->thinning_factor()) &&
           std::ranges::any_of(kAllTensors, [&](TensorName tensor) {
             return (tensor == TensorName::weight) == of_weights &&
                    each->feature->reads_statistics(tensor, iteration);
           });
  });
}

}  // namespace telens::debug
