#include "hooks/config/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "core/base/error.h"

namespace telens::config {
namespace {

// A mistake that hundreds of layers share is reported for the first few.
constexpr std::size_t kMostErrors = 5;

std::vector<std::string> each_once(std::span<const std::string> names) {
  std::vector<std::string> unique;
  std::set<std::string_view> seen;
  for (const std::string& name : names) {
    if (seen.insert(name).second) unique.push_back(name);
  }
  return unique;
}

std::vector<PlanRow> get_rows(const std::string& layer,
                              const std::vector<const FeatureEntry*>& entries) {
  std::vector<PlanRow> rows;
  for (const FeatureEntry* entry : entries) {
    if (entry->description->opaque) rows.push_back({layer, entry, nullptr});
    for (const Selection& selection : entry->selections) rows.push_back({layer, entry, &selection});
  }
  // In execution order. Tensors with free names follow the known ones.
  std::ranges::stable_sort(rows, {}, [](const PlanRow& row) {
    const auto gemm = gemm_from_name(row.gemm());
    const auto tensor = tensor_from_name(row.tensor());
    return std::tuple(gemm ? static_cast<int>(*gemm) : -1,
                      tensor ? static_cast<std::size_t>(*tensor) : kAllTensors.size(),
                      row.tensor());
  });
  return rows;
}

std::vector<std::string> idle_selectors(const Config& config,
                                        std::span<const std::string> layer_names) {
  ErrorList findings;
  for (const Section& section : config.sections()) {
    const ErrorList::Context context(findings, fmt::format("section '{}'", section.name));
    section.layers.find_idle(layer_names, findings);
    if (section.features.empty()) findings.add(section.location, "no feature is enabled");
  }
  return findings.lines();
}

[[noreturn]] void raise_errors(const std::vector<std::string>& errors) {
  std::string text;
  for (std::size_t i = 0; i < std::min(errors.size(), kMostErrors); ++i) {
    text += (i > 0 ? "\n" : "") + errors[i];
  }
  if (errors.size() > kMostErrors) {
    text += fmt::format("\n... and the same for {} more layers", errors.size() - kMostErrors);
  }
  throw ConfigError(text);
}

std::string describe(const Budget& budget) {
  return fmt::format(
      ", at most {:.3g}% of the time{}", 100 * budget.share,
      budget.full_steps > 0 ? fmt::format(" after {} steps", budget.full_steps) : "");
}

}  // namespace

bool PlanRow::idle() const { return selection && is_idle(*selection); }

bool PlanRow::due(std::int64_t iteration) const {
  return selection && !idle() && selection->schedule.due(iteration);
}

std::string PlanRow::gemm() const {
  return selection && selection->gemm ? std::string(get_name(*selection->gemm)) : "";
}

std::string PlanRow::tensor() const {
  return selection ? selection->tensor.value_or("") : std::string();
}

std::string PlanRow::when() const {
  if (!selection) return "decided at run time";
  if (idle()) return fmt::format("never: {} has no {}", gemm(), tensor());
  const SectionKeys& keys = *entry->keys;
  return fmt::format(
      "{}{}{}{}", keys.started_by ? fmt::format("once '{}' fires: ", keys.started_by->section) : "",
      describe(selection->schedule),
      keys.kept_by ? fmt::format(", written once '{}' fires", keys.kept_by->section) : "",
      keys.budget ? describe(*keys.budget) : "");
}

std::size_t Plan::touched_layers() const {
  std::set<std::string_view> touched;
  for (const PlanRow& row : rows) touched.insert(row.layer);
  return touched.size();
}

Plan make_plan(const Config& config, std::span<const std::string> layer_names) {
  Plan plan{config, each_once(layer_names), {}, {}};
  std::vector<std::string> errors;
  for (const std::string& layer : plan.layers) {
    try {
      const std::vector<PlanRow> rows = get_rows(layer, plan.config.entries_for(layer));
      plan.rows.insert(plan.rows.end(), rows.begin(), rows.end());
    } catch (const ConfigError& error) {
      errors.emplace_back(error.what());
    }
  }
  if (!errors.empty()) raise_errors(errors);
  plan.warnings = plan.config.warnings();
  for (std::string& each : idle_selectors(plan.config, plan.layers)) {
    plan.warnings.push_back(std::move(each));
  }
  return plan;
}

}  // namespace telens::config
