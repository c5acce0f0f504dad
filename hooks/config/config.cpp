#include "hooks/config/config.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"

namespace telens::config {
namespace {

bool modify_the_same(const FeatureEntry& a, const FeatureEntry& b) {
  if (!a.description->modifies || !b.description->modifies) return false;
  if (a.section == b.section && a.description == b.description) return false;  // written twice
  return std::ranges::any_of(a.selections, [&](const Selection& selection) {
    return b.find(selection.gemm, selection.tensor) != nullptr;
  });
}

}  // namespace

const Selection* FeatureEntry::find(std::optional<Gemm> gemm,
                                    std::optional<std::string_view> tensor) const {
  const auto found = std::ranges::find_if(selections, [&](const Selection& selection) {
    return selection.gemm == gemm && selection.tensor == tensor;
  });
  return found == selections.end() ? nullptr : &*found;
}

bool FeatureEntry::due(std::int64_t iteration, std::int64_t factor) const {
  if (description->opaque) return true;
  return std::ranges::any_of(selections, [&](const Selection& selection) {
    return selection.schedule.due(iteration, factor);
  });
}

std::optional<std::int64_t> FeatureEntry::next_due_after(std::int64_t iteration) const {
  std::optional<std::int64_t> next;
  for (const Selection& selection : selections) {
    const auto due = selection.schedule.next_due_after(iteration);
    if (due && (!next || *due < *next)) next = due;
  }
  return next;
}

void check_modifiers(const std::vector<const FeatureEntry*>& entries, ErrorList& errors) {
  // There are at most as many modifiers as tensors of GEMMs: each additional entry modifies an
  // already modified tensor.
  std::vector<const FeatureEntry*> modifiers;
  for (const FeatureEntry* second : entries) {
    if (!second->description->modifies || second->selections.empty()) continue;
    const auto first = std::ranges::find_if(
        modifiers, [&](const FeatureEntry* earlier) { return modify_the_same(*earlier, *second); });
    if (first == modifiers.end()) {
      modifiers.push_back(second);
      continue;
    }
    errors.add(second->location,
               "{} and {} ({}) modify the same tensor in the same GEMM; only one may",
               second->written_name, (*first)->written_name, to_string((*first)->location));
  }
}

Config::Config(std::vector<Section> sections, std::string text, std::vector<std::string> warnings)
    : sections_(std::make_shared<const std::vector<Section>>(std::move(sections))),
      text_(std::move(text)),
      warnings_(std::move(warnings)) {}

std::vector<const FeatureEntry*> Config::entries_for(std::string_view layer_name) const {
  std::vector<const FeatureEntry*> entries;
  const Section* exclusive = nullptr;
  for (const Section& section : sections()) {
    if (!section.layers.selects(layer_name)) continue;
    if (!section.may_overlap && exclusive) {
      raise<ConfigError>(
          "{}: the sections '{}' ({}) and '{}' both select the layer '{}'; a layer can be in "
          "only one section: merge the two, or narrow 'layers' in one",
          to_string(section.location), quotable(exclusive->name), to_string(exclusive->location),
          quotable(section.name), quotable(layer_name));
    }
    if (!section.may_overlap) exclusive = &section;
    for (const FeatureEntry& entry : section.features) entries.push_back(&entry);
  }
  ErrorList errors;
  const ErrorList::Context context(errors, fmt::format("layer '{}'", printable(layer_name)));
  check_modifiers(entries, errors);
  errors.raise_if_any();
  return entries;
}

}  // namespace telens::config
