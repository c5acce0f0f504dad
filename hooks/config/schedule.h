// The iterations in which a feature runs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/config/error_list.h"
#include "hooks/config/value.h"

namespace telens::config {

// A range of iterations, including both ends. Without `last` it does not end.
struct StepRange {
  std::int64_t first = 0;
  std::optional<std::int64_t> last;

  friend bool operator==(const StepRange&, const StepRange&) = default;
};

// Due if the absolute iteration is a multiple of freq and is in one of the ranges. A caller that
// runs only in every `factor`-th due iteration (hooks/sections.h) passes that factor.
class Schedule {
 public:
  Schedule() = default;                                        // every iteration
  Schedule(std::int64_t freq, std::vector<StepRange> ranges);  // freq >= 1

  // Returns true if one of the ranges contains the iteration, for any frequency.
  bool selects(std::int64_t iteration) const;

  bool due(std::int64_t iteration, std::int64_t factor = 1) const;

  // Returns true if it is due in this iteration and in all later ones.
  bool always_due_from(std::int64_t iteration, std::int64_t factor = 1) const;

  // Returns the first due iteration after the given one, or nullopt if there is none.
  std::optional<std::int64_t> next_due_after(std::int64_t iteration, std::int64_t factor = 1) const;

  // As configured.
  std::int64_t freq() const { return freq_; }
  const std::vector<StepRange>& ranges() const { return ranges_; }

  friend bool operator==(const Schedule& a, const Schedule& b) {
    return a.freq_ == b.freq_ && a.ranges_ == b.ranges_;
  }

 private:
  std::int64_t freq_ = 1;
  std::vector<StepRange> ranges_{StepRange{}};
  std::vector<StepRange> disjoint_{StepRange{}};  // these iterations, sorted and disjoint
};

// Returns for example "every iteration" or "every 10 iterations, 0 to 20 and from 80".
std::string describe(const Schedule& schedule);

// The keys of a schedule.
inline constexpr std::array<std::string_view, 4> kScheduleKeys{"freq", "start_step", "end_step",
                                                               "start_end_list"};

// Reads those keys of a map: freq (default 1), start_step (default 0) and end_step (inclusive; -1
// or null for no end), or start_end_list, [[first, last], ...], which replaces the two.
Schedule parse_schedule(const Value& map, ErrorList& errors);

// Warns about keys without effect: ranges that end before they begin, keys that others replace, a
// schedule that is never due. The keys have been parsed without an error.
void warn_of_idle_schedule(const Value& map, ErrorList& errors);

}  // namespace telens::config
