#include "hooks/config/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/io.h"
#include "core/base/text.h"
#include "hooks/config/suggestions.h"
#include "hooks/config/yaml_reader.h"

namespace telens::config {

// ---- layers and their features

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

// ---- loading: converts a Value to a Config

namespace {

constexpr std::string_view kLayers = "layers";

// Names of features begin with a capital letter, keys of a feature with a small one.
bool begins_as_feature(std::string_view key) {
  return !key.empty() && 'A' <= key[0] && key[0] <= 'Z';
}

class Loader {
 public:
  Loader(const Descriptions& descriptions, ErrorList& errors)
      : descriptions_(descriptions), errors_(errors) {}

  std::vector<Section> load(const Value& root) {
    std::vector<Section> sections;
    if (root.is_null()) {
      errors_.warn(root.location(),
                   "it is empty and watches nothing; add a section, or give \"\" for no config");
      return sections;
    }
    if (!root.is_map()) {
      errors_.add(root.location(), "a config must be a mapping of sections, not {}",
                  describe(root));
      return sections;
    }
    for (const MapEntry& entry : root.as_map()) {
      if (refuse_as_section(entry)) continue;
      const ErrorList::Context context(errors_, fmt::format("section '{}'", entry.key));
      if (is_enabled(entry.value, entry.key_location)) sections.push_back(load_section(entry));
    }
    check_links(sections, root, descriptions_, errors_);
    return sections;
  }

 private:
  // Reports a key of a section that is at the level of section names, because its indentation is
  // missing. An entry that contains `layers` is a section with this name and is not reported.
  bool refuse_as_section(const MapEntry& entry) {
    const bool is_feature =
        descriptions_.has_namespace(entry.key) || !descriptions_.find_all(entry.key).empty();
    if (!is_feature && entry.key != kLayers && entry.key != kEnabled) return false;
    if (entry.value.is_map()) {
      const Value* enabled = entry.value.find(kEnabled);
      const bool is_off = enabled != nullptr && enabled->is_bool() && !enabled->as_bool();
      if (is_off || entry.value.find(kLayers) != nullptr) return false;
    }
    errors_.add(entry.key_location,
                "'{}' is not inside a section; write a section name first, for example "
                "'watch:', and indent '{}' and its content below it",
                entry.key, entry.key);
    return true;
  }

  // Reads `enabled` of a section or a feature. An invalid value is an error and counts as true, so
  // that other errors below it are reported in the same run.
  bool is_enabled(const Value& map, const Location& key_location) {
    if (!map.is_map()) {
      errors_.add(key_location, "expected a mapping with '{}', not {}", kEnabled, describe(map));
      return false;
    }
    const Value* enabled = map.find(kEnabled);
    if (!enabled) {
      errors_.add(key_location, "'{}' is missing; write '{}: True' or '{}: False'", kEnabled,
                  kEnabled, kEnabled);
      return true;
    }
    if (!enabled->is_bool()) {
      errors_.add(enabled->location(), "'{}' must be true or false, not {}", kEnabled,
                  describe(*enabled));
      return true;
    }
    return enabled->as_bool();
  }

  Section load_section(const MapEntry& section_entry) {
    Section section{section_entry.key, section_entry.key_location, {}, {}, true};
    const Value& map = section_entry.value;
    section.keys = std::make_shared<const SectionKeys>(parse_section_keys(map, errors_));
    if (const Value* layers = map.find(kLayers)) {
      section.layers = LayerSelector::parse(*layers, errors_);
    } else {
      errors_.add(section_entry.key_location,
                  "'{}' is missing; say which layers, for example '{}: {{layer_types: [all]}}'",
                  kLayers, kLayers);
    }
    for (const MapEntry& entry : map.as_map()) {
      if (entry.key == kLayers || entry.key == kEnabled || is_section_key(entry.key)) continue;
      if (descriptions_.has_namespace(entry.key)) {
        load_namespace(entry, section);
      } else {
        load_feature(kBaseNamespace, entry, section);
      }
    }
    if (section.keys->waits()) section.may_overlap = true;
    check_features(section);
    return section;
  }

  void load_namespace(const MapEntry& entry, Section& section) {
    if (!entry.value.is_map()) {
      errors_.add(entry.value.location(),
                  "the namespace '{}' must be a mapping of features, not {}", entry.key,
                  describe(entry.value));
      return;
    }
    const MapEntry* empty = nullptr;  // an empty feature, whose keys may be indented too little
    for (const MapEntry& feature : entry.value.as_map()) {
      const bool is_feature = descriptions_.find(entry.key, feature.key) != nullptr;
      if (is_feature || !refuse_in_namespace(entry.key, feature, empty)) {
        load_feature(entry.key, feature, section);
      }
      if (is_feature) empty = feature.value.is_null() ? &feature : nullptr;
    }
  }

  // Returns true if the key is meant as a feature's name (misspelled or in small letters), and not
  // as a key of the empty feature before it.
  bool names_feature(std::string_view name, const std::string& key, const MapEntry& empty) {
    if (begins_as_feature(key)) return true;
    const auto is_key = [&](const Parameter& parameter) { return parameter.name == key; };
    const FeatureDescriptionPtr before = descriptions_.find(name, empty.key);
    if (std::ranges::any_of(before->parameters, is_key)) return false;
    const auto is_near = [&](const std::string& feature) {
      return edit_distance(key, feature) <= std::max(key.size(), feature.size()) / 3;
    };
    return std::ranges::any_of(descriptions_.names(name), is_near);
  }

  // Reports an entry at the level of features that is not a feature: it is one level too far left
  // or right.
  bool refuse_in_namespace(std::string_view name, const MapEntry& entry, const MapEntry* empty) {
    if (empty != nullptr && !names_feature(name, entry.key, *empty)) {
      errors_.add(entry.key_location,
                  "'{}' is at the same level as the empty '{}'; indent it "
                  "further",
                  entry.key, empty->key);
    } else if (entry.key == kLayers || entry.key == kEnabled || is_section_key(entry.key)) {
      errors_.add(entry.key_location,
                  "'{}' is a key of the section, not a feature of '{}'; indent it less, like "
                  "'{}:'",
                  entry.key, name, name);
    } else {
      return false;
    }
    return true;
  }

  void load_feature(std::string_view feature_namespace, const MapEntry& entry, Section& section) {
    const FeatureDescriptionPtr description = descriptions_.find(feature_namespace, entry.key);
    if (!description) {
      report_unknown_feature(feature_namespace, entry);
      return;
    }
    // A disabled feature counts, so that enabling it cannot cause an overlap.
    if (feature_namespace != kTelensNamespace) section.may_overlap = false;
    section.fires = section.fires || description->fires;
    const ErrorList::Context context(errors_, fmt::format("feature '{}'", entry.key));
    if (!is_enabled(entry.value, entry.key_location)) return;
    FeatureEntry feature{description, section.name,       entry.key,   {},
                         entry.value, entry.key_location, section.keys};
    if (!description->opaque) {
      feature.selections = resolve_selections(entry.value, *description, errors_);
      warn_of_idle_feature(feature);
    }
    section.features.push_back(std::move(feature));
  }

  void warn_of_idle_feature(const FeatureEntry& feature) {
    if (feature.selections.empty() || !std::ranges::all_of(feature.selections, is_idle)) return;
    const Selection& first = feature.selections.front();
    const auto [feeds, also_feeds] = get_gemms(*tensor_from_name(*first.tensor));
    errors_.warn(feature.location,
                 "it has no effect: the {} is not an operand or result of {}, only of {}{}, and "
                 "likewise for all selected GEMMs and tensors; select matching GEMMs",
                 *first.tensor, get_name(*first.gemm), get_name(feeds),
                 feeds == also_feeds ? "" : fmt::format(" and {}", get_name(also_feeds)));
  }

  void report_unknown_feature(std::string_view feature_namespace, const MapEntry& entry) {
    // Suggests a feature of another namespace, then a similar name, then lists the existing ones.
    const std::vector<FeatureDescriptionPtr> elsewhere = descriptions_.find_all(entry.key);
    if (!elsewhere.empty()) {
      errors_.add(entry.key_location,
                  "the namespace '{}' does not have a feature '{}'; move it to '{}:'",
                  feature_namespace, entry.key, elsewhere.front()->feature_namespace);
      return;
    }
    if (LayerSelector::is_key(entry.key)) {
      errors_.add(entry.key_location, "'{}' belongs under '{}:'; indent it further", entry.key,
                  kLayers);
      return;
    }
    std::vector<std::string> names = descriptions_.names(feature_namespace);
    const bool is_bare = feature_namespace == kBaseNamespace;
    if (is_bare) {
      names.insert(names.end(), descriptions_.namespaces().begin(),
                   descriptions_.namespaces().end());
      for (const std::string_view key : {kLayers, kEnabled, kStartedBy, kKeptBy, kBudget, kMode}) {
        names.emplace_back(key);
      }
    }
    const std::string near = suggestion(entry.key, names);
    errors_.add(
        entry.key_location, "unknown {} '{}'{}; expected one of {}{}",
        is_bare ? "feature or namespace"
                : fmt::format("feature of the namespace '{}'", feature_namespace),
        entry.key, near, quoted_list(names),
        is_bare || !near.empty()
            ? ""
            : "; a plugin's feature requires the plugin: pass feature_dirs to initialize(), or "
              "its name to the command with --plugin-feature");
  }

  void check_features(const Section& section) {
    std::vector<const FeatureEntry*> entries;
    for (const FeatureEntry& feature : section.features) {
      for (const FeatureEntry* other : entries) {
        if (other->description != feature.description) continue;
        errors_.add(feature.location, "{} and {} ({}) are the same feature; keep one",
                    feature.written_name, other->written_name, to_string(other->location));
      }
      entries.push_back(&feature);
    }
    check_modifiers(entries, errors_);
    if (!section.keys->budget) return;
    for (const FeatureEntry& feature : section.features) check_under_budget(feature);
  }

  // A budget skips iterations, so features under it may only observe.
  void check_under_budget(const FeatureEntry& feature) {
    const auto refuse = [&](const Location& location, const std::string& what) {
      errors_.add(location,
                  "{} cannot be in a section with a '{}', which may skip the iteration that it "
                  "waits for; move it to a separate section",
                  what, kBudget);
    };
    if (feature.description->modifies) {
      errors_.add(feature.location,
                  "{} changes the computation; a section with a '{}' may only observe",
                  feature.written_name, kBudget);
    }
    if (feature.description->fires) refuse(feature.location, feature.written_name);
    for (const Parameter& parameter : feature.description->parameters) {
      const Value* written = feature.config.find(parameter.name);
      if (parameter.needs_every_iteration && written != nullptr) {
        refuse(written->location(),
               fmt::format("'{}' of {}", parameter.name, feature.written_name));
      }
    }
  }

  const Descriptions& descriptions_;
  ErrorList& errors_;
};

std::string read_file(const std::filesystem::path& path) {
  const auto refuse = [&path](const std::error_code& cause) {
    raise<ConfigError>(
        "the config file '{}' cannot be read: {}; check the path (\"\" means no config) and its "
        "rights",
        path.string(), cause.message());
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    refuse(std::make_error_code(std::errc::is_a_directory));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse({errno, std::generic_category()});
  std::optional<std::string> text = read_bounded(file, kMostTextBytes);
  if (text) return std::move(*text);
  raise<ConfigError>("the config file '{}' is larger than {} MB; check the path", path.string(),
                     kMostTextBytes >> 20);
}

}  // namespace

Config load_config_file(const std::filesystem::path& path, const Descriptions& descriptions) {
  return load_config_text(read_file(path), path.string(), descriptions);
}

Config load_config_text(std::string_view yaml, std::string_view source_name,
                        const Descriptions& descriptions) {
  ErrorList errors;
  const Value root = read_yaml(yaml, source_name, errors);
  std::vector<Section> sections = Loader(descriptions, errors).load(root);
  errors.raise_if_any();
  return Config(std::move(sections), std::string(yaml), errors.warning_lines());
}

Config load_config_value(const Value& value, const Descriptions& descriptions) {
  ErrorList errors;
  std::vector<Section> sections = Loader(descriptions, errors).load(value);
  errors.raise_if_any();
  return Config(std::move(sections), to_json(value), errors.warning_lines());
}

}  // namespace telens::config
