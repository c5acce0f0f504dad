#include "hooks/config/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string_view>

namespace telens::config {
namespace {

// An alternative to null for "no end".
constexpr std::int64_t kNoEnd = -1;

// The maximum number of ranges that a description lists.
constexpr std::size_t kMostDescribed = 20;

constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();

bool is_reversed(const StepRange& range) { return range.last && *range.last < range.first; }

std::int64_t last_of(const StepRange& range) { return range.last.value_or(kLast); }

// Returns the ranges sorted, and joined if they overlap or are adjacent.
std::vector<StepRange> joined(std::vector<StepRange> ranges) {
  std::erase_if(ranges, is_reversed);
  std::ranges::sort(ranges, {}, &StepRange::first);
  std::vector<StepRange> disjoint;
  for (const StepRange& range : ranges) {
    if (disjoint.empty() ||
        (last_of(disjoint.back()) < kLast && range.first > last_of(disjoint.back()) + 1)) {
      disjoint.push_back(range);
    } else if (last_of(range) > last_of(disjoint.back())) {
      disjoint.back().last = range.last;
    }
  }
  return disjoint;
}

// Returns the first range that ends at the iteration or later.
std::vector<StepRange>::const_iterator range_at(const std::vector<StepRange>& disjoint,
                                                std::int64_t iteration) {
  return std::ranges::lower_bound(disjoint, iteration, {}, last_of);
}

std::int64_t parse_first(const Value& value, std::string_view what, ErrorList& errors) {
  if (!value.is_integer()) {
    errors.add(value.location(), "{} must be an integer, not {}", what, describe(value));
    return 0;
  }
  return value.as_integer();
}

std::optional<std::int64_t> parse_last(const Value& value, std::string_view what,
                                       ErrorList& errors) {
  if (value.is_null()) return std::nullopt;
  if (!value.is_integer() || value.as_integer() < kNoEnd) {
    errors.add(value.location(), "{} must be an iteration, or -1 or null for no end, not {}", what,
               describe(value));
    return std::nullopt;
  }
  if (value.as_integer() == kNoEnd) return std::nullopt;
  return value.as_integer();
}

std::vector<StepRange> parse_ranges(const Value& value, ErrorList& errors) {
  std::vector<StepRange> ranges;
  if (!value.is_list()) {
    errors.add(value.location(),
               "'start_end_list' must be a list of pairs [first, last], for example "
               "[[0, 20], [80, 100]], not {}",
               describe(value));
    return ranges;
  }
  for (const Value& pair : value.as_list()) {
    if (!pair.is_list() || pair.as_list().size() != 2) {
      errors.add(pair.location(),
                 "an item of 'start_end_list' must be a pair [first, last], not {}",
                 describe(pair));
      continue;
    }
    ranges.push_back({parse_first(pair.as_list()[0], "the first of a pair", errors),
                      parse_last(pair.as_list()[1], "the last of a pair", errors)});
  }
  return ranges;
}

void warn_of_list(const Value& map, const Value& list, const std::vector<StepRange>& ranges,
                  ErrorList& errors) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (!is_reversed(ranges[i])) continue;
    errors.warn(list.as_list()[i].location(),
                "the pair [{0}, {1}] ends before it begins, so it selects no iteration; write "
                "[{1}, {0}], or remove it",
                ranges[i].first, *ranges[i].last);
  }
  for (const std::string_view key : {"start_step", "end_step"}) {
    const Value* replaced = map.find(key);
    if (replaced == nullptr || replaced->is_null()) continue;
    errors.warn(replaced->location(),
                "'{}' has no effect: 'start_end_list' replaces it; remove one of them", key);
  }
}

}  // namespace

Schedule::Schedule(std::int64_t freq, std::vector<StepRange> ranges)
    : freq_(freq), ranges_(std::move(ranges)), disjoint_(joined(ranges_)) {}

bool Schedule::selects(std::int64_t iteration) const {
  const auto range = range_at(disjoint_, iteration);
  return range != disjoint_.end() && range->first <= iteration;
}

bool Schedule::due(std::int64_t iteration, std::int64_t factor) const {
  return iteration % (freq_ * factor) == 0 && selects(iteration);
}

bool Schedule::always_due_from(std::int64_t iteration, std::int64_t factor) const {
  if (freq_ * factor != 1) return false;
  const auto range = range_at(disjoint_, iteration);
  return range != disjoint_.end() && range->first <= iteration && last_of(*range) == kLast;
}

std::optional<std::int64_t> Schedule::next_due_after(std::int64_t iteration,
                                                     std::int64_t factor) const {
  if (iteration == kLast) return std::nullopt;
  const std::int64_t freq = freq_ * factor;
  const std::int64_t earliest = std::max(iteration + 1, std::int64_t{0});
  for (auto range = range_at(disjoint_, earliest); range != disjoint_.end(); ++range) {
    const std::int64_t from = std::max(earliest, range->first);
    const std::int64_t wait = (freq - from % freq) % freq;
    if (wait <= last_of(*range) - from) return from + wait;
  }
  return std::nullopt;
}

std::string describe(const Schedule& schedule) {
  std::string text = schedule.freq() == 1 ? std::string("every iteration")
                                          : fmt::format("every {} iterations", schedule.freq());
  const std::vector<StepRange>& all = schedule.ranges();
  const auto is_endless = [](const StepRange& range) { return !range.last && range.first <= 0; };
  if (std::ranges::any_of(all, is_endless)) return text;
  std::vector<std::string> ranges;
  for (const StepRange& range : std::span(all).first(std::min(all.size(), kMostDescribed))) {
    const std::int64_t first = std::max(range.first, std::int64_t{0});
    if (range.last) {
      ranges.push_back(fmt::format("{} to {}", first, *range.last));
    } else {
      ranges.push_back(fmt::format("from {}", first));
    }
  }
  if (all.size() > kMostDescribed) {
    ranges.push_back(fmt::format("{} more", all.size() - kMostDescribed));
  }
  return fmt::format("{}, {}", text, fmt::join(ranges, " and "));
}

Schedule parse_schedule(const Value& map, ErrorList& errors) {
  std::int64_t freq = 1;
  if (const Value* value = map.find("freq")) {
    if (value->is_integer() && value->as_integer() >= 1) {
      freq = value->as_integer();
    } else {
      errors.add(value->location(), "'freq' must be an integer of at least 1, not {}",
                 describe(*value));
    }
  }
  StepRange range;
  if (const Value* value = map.find("start_step")) {
    range.first = parse_first(*value, "'start_step'", errors);
  }
  if (const Value* value = map.find("end_step")) {
    range.last = parse_last(*value, "'end_step'", errors);
  }
  const Value* list = map.find("start_end_list");
  if (list && !list->is_null()) {
    std::vector<StepRange> ranges = parse_ranges(*list, errors);
    // As in Transformer Engine, an empty list does not replace anything.
    if (!ranges.empty()) return Schedule(freq, std::move(ranges));
  }
  return Schedule(freq, {range});
}

void warn_of_idle_schedule(const Value& map, ErrorList& errors) {
  ErrorList known;
  const Schedule schedule = parse_schedule(map, known);
  const Value* list = map.find("start_end_list");
  const bool has_list = list != nullptr && list->is_list();
  if (!known.empty()) return;
  if (has_list && list->as_list().empty()) {
    errors.warn(list->location(),
                "'start_end_list' is empty and replaces nothing: it runs {}; leave it out, or name "
                "pairs [first, last]",
                describe(schedule));
  } else if (has_list) {
    warn_of_list(map, *list, schedule.ranges(), errors);
  } else if (is_reversed(schedule.ranges().front())) {
    const StepRange& range = schedule.ranges().front();
    errors.warn(map.find("end_step")->location(),
                "'end_step' {} comes before 'start_step' {}, so no iteration is selected; swap "
                "them, or remove one",
                *range.last, range.first);
  }
  const bool may_be_due =
      std::ranges::any_of(schedule.ranges(), [](const auto& range) { return !is_reversed(range); });
  if (!may_be_due || schedule.next_due_after(-1)) return;
  errors.warn(map.find("freq") != nullptr ? map.find("freq")->location() : map.location(),
              "no iteration is due: {} has none that is a multiple of 'freq'; change one of them",
              describe(schedule));
}

}  // namespace telens::config
