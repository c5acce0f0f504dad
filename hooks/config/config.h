// A debug configuration: immutable, typed, made once at load.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/config/feature_description.h"
#include "hooks/config/layer_selector.h"
#include "hooks/config/section_keys.h"
#include "hooks/config/selection.h"
#include "hooks/config/value.h"

namespace telens::config {

// One enabled feature of one enabled section.
struct FeatureEntry {
  FeatureDescriptionPtr description;
  std::string section;
  std::string written_name;           // the feature's name or alias, as in the text
  std::vector<Selection> selections;  // empty for an opaque feature, which parses `config` itself
  Value config;                       // the feature's map as written, merge keys applied
  Location location;
  std::shared_ptr<const SectionKeys> keys;  // the keys of its section

  // The selection for a gemm and tensor; nullptr: not selected.
  const Selection* find(std::optional<Gemm> gemm, std::optional<std::string_view> tensor) const;

  // Over all selections: whether any is due, and when the next one is. An opaque feature may be due
  // at any time.
  // `factor`: as for Schedule.
  bool due(std::int64_t iteration, std::int64_t factor = 1) const;
  std::optional<std::int64_t> next_due_after(std::int64_t iteration) const;
};

// Two of the entries that modify the same tensor in the same GEMM are an error that names both.
void check_modifiers(const std::vector<const FeatureEntry*>& entries, ErrorList& errors);

// One enabled section.
struct Section {
  std::string name;
  Location location;
  LayerSelector layers;
  std::vector<FeatureEntry> features;

  // Only features of the namespace telens, or it waits for another section: it may select layers
  // that another section selects.
  bool may_overlap = false;
  bool fires = false;  // it has a feature that fires, enabled or not
  std::shared_ptr<const SectionKeys> keys = std::make_shared<const SectionKeys>();
};

class Config {
 public:
  Config() = default;  // selects nothing
  Config(std::vector<Section> sections, std::string text, std::vector<std::string> warnings = {});

  // The features of a layer, in the order of the text. Throws ConfigError, naming both, where two
  // sections select the layer that may not overlap, or where two features modify the same tensor
  // in the same GEMM. The pointers live as long as this Config or any copy of it.
  std::vector<const FeatureEntry*> entries_for(std::string_view layer_name) const;

  const std::vector<Section>& sections() const { return *sections_; }

  // Parts that are legal but do nothing, a line each, such as
  // "debug.yaml:7:5: section 'a', feature 'b': it does nothing: ...".
  const std::vector<std::string>& warnings() const { return warnings_; }

  // The loaded text, for the record: the YAML text, or JSON made from a dict.
  const std::string& text() const { return text_; }

 private:
  std::shared_ptr<const std::vector<Section>> sections_ =
      std::make_shared<const std::vector<Section>>();
  std::string text_;
  std::vector<std::string> warnings_;
};

// Each throws ConfigError with all mistakes at once, a line each:
//   debug.yaml:7:5: section 'a', feature 'FakeQuant': unknown key 'gemm' (did you mean 'gemms'?);
//   ...
// A named file that is missing is a mistake; an empty file, or one whose sections are all
// disabled, is not.
Config load_config_file(const std::filesystem::path& path, const Descriptions& descriptions);
Config load_config_text(std::string_view yaml, std::string_view source_name,
                        const Descriptions& descriptions);
Config load_config_value(const Value& value, const Descriptions& descriptions);

}  // namespace telens::config
