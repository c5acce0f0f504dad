#include "analysis/rules/kept_codes.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "hooks/config/schedule.h"
#include "hooks/config/section_keys.h"
#include "hooks/config/yaml_reader.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kLeastCasts = 4;  // that show how often the weight is cast
constexpr std::int64_t kPauses = 2;     // a longer pause than usual is not the end

std::int64_t longest_pause(const Series& casts) {
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < casts.points.size(); ++i) {
    longest = std::max(longest, casts.points[i].iteration - casts.points[i - 1].iteration);
  }
  return longest;
}

const Series* get_casts(const Facts& facts, Place place, TensorName tensor) {
  place.tensor = tensor;
  return facts.find(place, "mse");
}

// The last looks at casts of a weight, and the iteration up to which there was something to see.
struct LastLooks {
  std::span<const Point> looks;
  std::int64_t end = 0;
};

// A map with the keys of a schedule that was due in all of them, and not any more up to the end.
bool ends_there(const config::Value& map, const LastLooks& last) {
  const bool is_schedule = std::ranges::any_of(
      config::kScheduleKeys, [&](std::string_view key) { return map.find(key) != nullptr; });
  if (!is_schedule) return false;
  config::ErrorList errors;
  const config::Schedule schedule = config::parse_schedule(map, errors);
  const auto is_due = [&](const Point& look) { return schedule.due(look.iteration); };
  if (!errors.empty() || !std::ranges::all_of(last.looks, is_due)) return false;
  const auto next = schedule.next_due_after(last.looks.back().iteration);
  return !next || *next > last.end;
}

// A section that runs or records only after another section has triggered.
bool waits(const config::Value& map) {
  return map.find(config::kStartedBy) != nullptr || map.find(config::kKeptBy) != nullptr;
}

// Returns true if `matches` accepts an enabled map of the configuration at any depth.
template <typename Matches>
bool has_map(const config::Value& value, const Matches& matches) {
  const auto in = [&](const config::Value& each) { return has_map(each, matches); };
  if (value.is_list()) return std::ranges::any_of(value.as_list(), in);
  if (!value.is_map()) return false;
  const config::Value* enabled = value.find("enabled");
  if (enabled != nullptr && enabled->is_bool() && !enabled->as_bool()) return false;
  return matches(value) || std::ranges::any_of(value.as_map(), in, &config::MapEntry::value);
}

}  // namespace

std::optional<KeptCodes> kept_codes(const Facts& facts, const Series& error) {
  if (error.place.gemm == Gemm::wgrad) return std::nullopt;
  const bool is_forward = error.place.gemm == Gemm::fprop;
  const Series* weight = get_casts(facts, error.place, TensorName::weight);
  const Series* other =
      get_casts(facts, error.place, is_forward ? TensorName::activation : TensorName::gradient);
  if (weight == nullptr || other == nullptr) return std::nullopt;
  if (weight->points.size() < kLeastCasts || other->points.empty()) return std::nullopt;
  const std::int64_t last = weight->points.back().iteration;
  const std::int64_t end = other->points.back().iteration;
  if (end - last <= kPauses * longest_pause(*weight)) return std::nullopt;
  config::ErrorList errors;
  const config::Value config = config::read_yaml(facts.config_text(), "config", errors);
  const bool is_known = errors.empty() && config.is_map();
  const LastLooks looks{.looks = std::span(weight->points).last(kLeastCasts), .end = end};
  const auto ends = [&](const config::Value& map) { return ends_there(map, looks); };
  if (is_known && has_map(config, ends)) return std::nullopt;
  const auto since = std::ranges::upper_bound(other->points, last, {}, &Point::iteration);
  return KeptCodes{.since = since->iteration, .is_looked_at = is_known && !has_map(config, waits)};
}

}  // namespace telens::analysis
