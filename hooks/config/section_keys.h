// The keys of a section in addition to its layers and features. They name the section on which its
// runs or records depend, and limit its cost.
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

inline constexpr std::string_view kEnabled = "enabled";  // also a key of features
inline constexpr std::string_view kStartedBy = "started_by";
inline constexpr std::string_view kKeptBy = "kept_by";
inline constexpr std::string_view kBudget = "budget";
inline constexpr std::string_view kMode = "mode";

// The forwards that a section's features inspect.
enum class Mode : std::uint8_t { train, eval, both };
std::string_view get_name(Mode mode);

// The parameters of a feature that fires (FeatureDescription::fires): the number of iterations that
// started sections run, and the number that is kept.
inline constexpr std::string_view kStart = "start";
inline constexpr std::string_view kWriteLast = "write_last";
inline constexpr std::string_view kOperands = "operands";  // elements of operands are also written

// The name of another section and its location.
struct SectionLink {
  std::string section;
  Location location;
};

// `budget`: either only the share ("3%") or a map with these keys.
struct Budget {
  double share = 0;  // of the step time, 0.03 for 3%
  // The section's first steps are recorded in full and do not count against the share, as long as
  // they cost less than `full_seconds` in total.
  std::int64_t full_steps = 200;
  double full_seconds = 30;
};
inline constexpr std::string_view kShare = "share";
inline constexpr std::string_view kFullSteps = "full_steps";
inline constexpr std::string_view kFullSeconds = "full_seconds";

struct SectionKeys {
  std::optional<SectionLink> started_by;  // runs only after that section's feature has fired
  std::optional<SectionLink> kept_by;     // its statistics are kept until that feature fires
  std::optional<Budget> budget;
  Mode mode = Mode::train;
  Location mode_location;  // location in the text

  bool looks_at(bool evaluation) const {
    return mode == Mode::both || (mode == Mode::eval) == evaluation;
  }

  // Returns true if it does not run, or does not record, before another feature fires.
  bool waits() const { return started_by || kept_by; }
};

// Returns true for one of these keys of a section.
bool is_section_key(std::string_view key);

// Parses those keys of a section's map.
SectionKeys parse_section_keys(const Value& section, ErrorList& errors);

class Descriptions;
struct Section;

// Checks the keys across sections. The other section must exist and have a feature that fires and
// defines the number of iterations. Every such number needs a section that uses it.
// `root`: the complete text, including disabled sections.
void check_links(const std::vector<Section>& sections, const Value& root,
                 const Descriptions& descriptions, ErrorList& errors);

// ---- parameters for the memory of a look-back buffer, whose rows and operands (kWriteLast,
// kOperands) are written if a feature fires

// The limit in MiB, which applies to rows and to operands separately.
inline constexpr std::string_view kMostMebibytes = "max_mebibytes";
inline constexpr std::int64_t kMostMebibytesByDefault = 64;

}  // namespace telens::config
