// The keys of a section in addition to its layers and features: which other section decides whether
// it runs or whether its records are written, and how much it may cost.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "hooks/config/error_list.h"
#include "hooks/config/schedule.h"
#include "hooks/config/value.h"

namespace telens::config {

inline constexpr std::string_view kEnabled = "enabled";  // a feature has it too
inline constexpr std::string_view kStartedBy = "started_by";
inline constexpr std::string_view kKeptBy = "kept_by";
inline constexpr std::string_view kBudget = "budget";
inline constexpr std::string_view kMode = "mode";

// The forwards that a section's features look at.
enum class Mode : std::uint8_t { train, eval, both };
std::string_view get_name(Mode mode);

// The parameters of a feature that fires (FeatureDescription::fires) which give these sections
// their measure: iterations that they run, iterations that are kept.
inline constexpr std::string_view kStart = "start";
inline constexpr std::string_view kWriteLast = "write_last";
inline constexpr std::string_view kOperands = "operands";  // elements of operands are written too

// The name of another section, with the place where it stands.
struct SectionLink {
  std::string section;
  Location location;
};

// `budget`: either the share alone ("3%") or a map with these keys.
struct Budget {
  double share = 0;  // of the step time that the section may cost: 0.03 for 3%
  // The section's first steps are recorded in full and not counted against the share, as long as
  // this has cost less than `full_seconds` in all.
  std::int64_t full_steps = 200;
  double full_seconds = 30;
};
inline constexpr std::string_view kShare = "share";
inline constexpr std::string_view kFullSteps = "full_steps";
inline constexpr std::string_view kFullSeconds = "full_seconds";

struct SectionKeys {
  std::optional<SectionLink> started_by;  // runs only after that section's feature has fired
  std::optional<SectionLink> kept_by;     // its statistics are kept until that happens
  std::optional<Budget> budget;
  Mode mode = Mode::train;
  Location mode_location;  // where it is written

  bool looks_at(bool evaluation) const {
    return mode == Mode::both || (mode == Mode::eval) == evaluation;
  }

  // Neither runs, nor records, before something happens.
  bool waits() const { return started_by || kept_by; }
};

// True for a key of a section that is one of these.
bool is_section_key(std::string_view key);

// Reads those keys of a section's map.
SectionKeys parse_section_keys(const Value& section, ErrorList& errors);

class Descriptions;
struct Section;

// Checks the keys across sections: the other section exists, has a feature that fires, and gives
// the measure; and for every measure that such a feature gives there is a section.
// `root`: the whole text, with its disabled sections.
void check_links(const std::vector<Section>& sections, const Value& root,
                 const Descriptions& descriptions, ErrorList& errors);

}  // namespace telens::config
