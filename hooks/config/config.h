// A debug configuration: immutable, typed, built once at load.
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

// ---- environment variables that debug.initialize() reads, set by programs that start others with
// a session

// The path of a configuration, and a folder. They replace those that the program passes.
inline constexpr const char* kConfigVariable = "TELENS_CONFIG";
inline constexpr const char* kLogDirVariable = "TELENS_LOG_DIR";
// "off": no section skips iterations to stay within its `budget`.
inline constexpr const char* kBudgetVariable = "TELENS_BUDGET";

// ---- the configuration

// One enabled feature in an enabled section.
struct FeatureEntry {
  FeatureDescriptionPtr description;
  std::string section;
  std::string written_name;           // the feature's name or alias, as written
  std::vector<Selection> selections;  // empty for an opaque feature, which parses `config` itself
  Value config;                       // the feature's map as written, merge keys applied
  Location location;
  std::shared_ptr<const SectionKeys> keys;  // the keys of its section

  // Returns the selection for a gemm and tensor, or nullptr if they are not selected.
  const Selection* find(std::optional<Gemm> gemm, std::optional<std::string_view> tensor) const;

  // Return whether any selection is due, and the next iteration in which one is. An opaque feature
  // may be due in any iteration.
  // `factor`: as for Schedule.
  bool due(std::int64_t iteration, std::int64_t factor = 1) const;
  std::optional<std::int64_t> next_due_after(std::int64_t iteration) const;
};

// Adds an error that names both entries if two of them modify the same tensor in the same GEMM.
void check_modifiers(const std::vector<const FeatureEntry*>& entries, ErrorList& errors);

// One enabled section.
struct Section {
  std::string name;
  Location location;
  LayerSelector layers;
  std::vector<FeatureEntry> features;

  // True if the section has only features of the namespace telens, or waits for another section. It
  // may then select layers that another section selects.
  bool may_overlap = false;
  bool fires = false;  // it has a feature that fires, enabled or disabled
  std::shared_ptr<const SectionKeys> keys = std::make_shared<const SectionKeys>();
};

class Config {
 public:
  Config() = default;  // selects nothing
  Config(std::vector<Section> sections, std::string text, std::vector<std::string> warnings = {});

  // Returns the features of a layer, in the order of the text. Throws ConfigError if two sections
  // that may not overlap select the layer, or if two features modify the same tensor in the same
  // GEMM; the error names both. The pointers are valid as long as this Config or a copy of it.
  std::vector<const FeatureEntry*> entries_for(std::string_view layer_name) const;

  const std::vector<Section>& sections() const { return *sections_; }

  // Legal parts without any effect, one per line, such as
  // "debug.yaml:7:5: section 'a', feature 'b': it has no effect: ...".
  const std::vector<std::string>& warnings() const { return warnings_; }

  // The loaded text, for the run file: the YAML text, or JSON generated from a dict.
  const std::string& text() const { return text_; }

 private:
  std::shared_ptr<const std::vector<Section>> sections_ =
      std::make_shared<const std::vector<Section>>();
  std::string text_;
  std::vector<std::string> warnings_;
};

// Both throw ConfigError with all mistakes, one per line:
//   debug.yaml:7:5: section 'a', feature 'FakeQuant': unknown key 'gemm' (did you mean 'gemms'?);
//   ...
// A missing file is a mistake. An empty file, or one whose sections are all disabled, is not.
Config load_config_file(const std::filesystem::path& path, const Descriptions& descriptions);
Config load_config_text(std::string_view yaml, std::string_view source_name,
                        const Descriptions& descriptions);
Config load_config_value(const Value& value, const Descriptions& descriptions);

}  // namespace telens::config
