#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <ranges>
#include <span>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/facts.h"
#include "analysis/rules/rules.h"
#include "hooks/config/schedule.h"
#include "hooks/config/section_keys.h"
#include "hooks/config/yaml_reader.h"

namespace telens::analysis {
namespace {

// Relative errors of FP8 GEMMs are 0.03 to 0.1, and 0.3 in single weight gradients whose terms
// cancel. A wrong operand causes 1.4, a scale that is off by a factor of 2 causes 0.5 or 1, and a
// weight from 20 steps ago causes 0.1 to 0.3.
struct ErrorLimits {
  double min_error;
  double times_expected;  // multiple of the error that the casts of the operands explain
};

// Returns limits above the errors of healthy runs. In three consecutive reads these are at most
// 0.07 for fprop, 0.11 for dgrad and 0.2 for wgrad, and at most 1.7, 2.1 and 3.7 times the
// explained error. Terms of wgrad cancel if there are many tokens.
ErrorLimits get_limits(Gemm gemm) {
  switch (gemm) {
    case Gemm::fprop:
      return {.min_error = 0.1, .times_expected = 3};
    case Gemm::dgrad:
      return {.min_error = 0.25, .times_expected = 4};
    case Gemm::wgrad:
      break;
  }
  return {.min_error = 0.45, .times_expected = 5};
}

constexpr double kTimesPastError = 3;    // times the median past error, if known
constexpr double kGrowthFactor = 1.3;    // times the lower quartile of the past errors
constexpr double kRoundingError = 0.01;  // relative error of BF16 outputs and of sums that cancel
constexpr std::size_t kMinPastErrors = 4;
constexpr std::size_t kMinWrongReads = 3;  // consecutive reads; a single product may cancel

std::array<TensorName, 2> get_cast_operands(Gemm gemm) {
  switch (gemm) {
    case Gemm::fprop:
      return {TensorName::activation, TensorName::weight};
    case Gemm::dgrad:
      return {TensorName::gradient, TensorName::weight};
    case Gemm::wgrad:
      break;
  }
  return {TensorName::activation, TensorName::gradient};
}

// Clipping and underflow lose at most the whole tensor. A larger error means that the operand held
// another tensor's values.
constexpr double kMaxCastError = 1.05;

// Returns sqrt(mse) / root mean square; 0 if not recorded, as in high precision, or above
// kMaxCastError.
double cast_error(const Facts& facts, Place place, std::int64_t iteration) {
  const Series* mse = facts.find(place, "mse");
  const auto error = mse != nullptr ? mse->at(iteration) : std::nullopt;
  const auto size = root_mean_square(facts, place, iteration);
  if (!error || !size || !(*size > 0)) return 0;
  const double relative = std::sqrt(std::max(0.0, *error)) / *size;
  return relative > kMaxCastError ? 0 : relative;
}

// Returns the relative error that the casts of the operands explain. Errors of independent operands
// add as squares.
double explained_error(const Facts& facts, const Series& error, std::int64_t iteration) {
  double sum = kRoundingError * kRoundingError;
  for (const TensorName tensor : get_cast_operands(*error.place.gemm)) {
    Place place = error.place;
    place.tensor = tensor;
    const double each = cast_error(facts, place, iteration);
    sum += each * each;
  }
  return std::sqrt(sum);
}

Finding gemm_error_finding(const Series& error, const Point& first, double expected) {
  return {.cause = "gemm_error",
          .place = error.place,
          .first = first.iteration,
          .last = first.iteration,
          .confidence = kProven,
          .summary = fmt::format(
              "the product is off by {:.0f} %, but the casts of its operands explain only {:.2g} %",
              100 * first.value, 100 * expected),
          .evidence = {{"gemm_relative_error", error.place, first.iteration, first.value, ""},
                       {"sqrt(mse) / rms of the operands", error.place, first.iteration, expected,
                        "expected"}}};
}

// Returns the iteration up to `first` in which the error began to exceed its past range. An operand
// that is no longer updated is wrong from that iteration on, by a little more in each iteration.
std::int64_t find_error_start(const Series& error, std::int64_t first, std::vector<double> past) {
  if (past.size() < kMinPastErrors) return first;
  std::ranges::sort(past);
  const double edge = kGrowthFactor * past[past.size() / 4];
  auto point = std::ranges::lower_bound(error.points, first, {}, &Point::iteration);
  constexpr double kJump = 2;  // times the previous error; the error began with this jump
  if (point != error.points.begin() && point->value > kJump * std::prev(point)->value) return first;
  while (point != error.points.begin() && std::prev(point)->value > edge) --point;
  return point->iteration;
}

std::optional<Finding> find_unexplained_error(const Facts& facts, const Series& error) {
  const ErrorLimits limits = get_limits(*error.place.gemm);
  std::vector<double> past;
  std::vector<Point> wrong;  // consecutive reads
  std::optional<Finding> found;
  for (const Point& point : error.points) {
    // The error is infinite if the exact product is zero, as for gradients of zero.
    if (!std::isfinite(point.value)) continue;
    const double expected = explained_error(facts, error, point.iteration);
    const bool unusual =
        past.size() < kMinPastErrors || point.value > kTimesPastError * median(past);
    if (!unusual || point.value <= std::max(limits.min_error, limits.times_expected * expected)) {
      wrong.clear();
      if (!found) past.push_back(point.value);
      continue;
    }
    wrong.push_back(point);
    if (found && wrong.size() >= kMinWrongReads) found->last = point.iteration;
    if (!found && wrong.size() == kMinWrongReads) {
      found = gemm_error_finding(error, wrong.front(),
                                 explained_error(facts, error, wrong.front().iteration));
      found->first = find_error_start(error, found->first, past);
      found->last = point.iteration;
    }
  }
  return found;
}

struct CachedWeight {
  std::int64_t since = 0;  // first iteration in which the GEMM reused an earlier cast
  // True if the configuration still records the casts. If false, casts may have continued
  // unrecorded.
  bool is_recorded = false;
};

constexpr std::size_t kMinWeightCasts = 4;  // casts that show how often the weight is cast
// Times the longest pause; a shorter pause is not the end.
constexpr std::int64_t kTimesLongestPause = 2;

std::int64_t longest_pause(const Series& casts) {
  std::int64_t longest = 0;
  for (std::size_t i = 1; i < casts.points.size(); ++i) {
    longest = std::max(longest, casts.points[i].iteration - casts.points[i - 1].iteration);
  }
  return longest;
}

const Series* get_cast_errors(const Facts& facts, Place place, TensorName tensor) {
  place.tensor = tensor;
  return facts.find(place, "mse");
}

// The last recorded casts of a weight, and the last cast of the other operand.
struct LastCasts {
  std::span<const Point> casts;
  std::int64_t end = 0;
};

// Returns true if the map has a schedule that is due at each of the last casts and not again up to
// the end.
bool ends_by_schedule(const config::Value& map, const LastCasts& last) {
  const bool is_schedule = std::ranges::any_of(
      config::kScheduleKeys, [&](std::string_view key) { return map.find(key) != nullptr; });
  if (!is_schedule) return false;
  config::ErrorList errors;
  const config::Schedule schedule = config::parse_schedule(map, errors);
  const auto is_due = [&](const Point& cast) { return schedule.due(cast.iteration); };
  if (!errors.empty() || !std::ranges::all_of(last.casts, is_due)) return false;
  const auto next = schedule.next_due_after(last.casts.back().iteration);
  return !next || *next > last.end;
}

// Returns true for a section that runs or records only after another section has triggered.
bool has_trigger(const config::Value& map) {
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

// Detects a weight whose casts stop while the casts of the other operand continue. Returns nullopt
// if the weight is cast until the end, is not an operand, or is no longer recorded because of a
// schedule.
std::optional<CachedWeight> find_cached_weight(const Facts& facts, const Series& error) {
  if (error.place.gemm == Gemm::wgrad) return std::nullopt;
  const bool is_forward = error.place.gemm == Gemm::fprop;
  const Series* weight = get_cast_errors(facts, error.place, TensorName::weight);
  const Series* other = get_cast_errors(facts, error.place,
                                        is_forward ? TensorName::activation : TensorName::gradient);
  if (weight == nullptr || other == nullptr) return std::nullopt;
  if (weight->points.size() < kMinWeightCasts || other->points.empty()) return std::nullopt;
  const std::int64_t last = weight->points.back().iteration;
  const std::int64_t end = other->points.back().iteration;
  if (end - last <= kTimesLongestPause * longest_pause(*weight)) return std::nullopt;
  config::ErrorList errors;
  const config::Value config = config::read_yaml(facts.config_text(), "config", errors);
  const bool is_known = errors.empty() && config.is_map();
  const LastCasts casts{.casts = std::span(weight->points).last(kMinWeightCasts), .end = end};
  const auto ends = [&](const config::Value& map) { return ends_by_schedule(map, casts); };
  if (is_known && has_map(config, ends)) return std::nullopt;
  const auto since = std::ranges::upper_bound(other->points, last, {}, &Point::iteration);
  return CachedWeight{.since = since->iteration,
                      .is_recorded = is_known && !has_map(config, has_trigger)};
}

// Detects a cached quantized weight whose weight has changed since. At twice the error of a fresh
// cast, the age of the cached weight costs more than the cast, because independent errors add as
// squares. If the weight does not change, the cache costs nothing.
std::optional<Finding> judge_cached_weight(const Series& error, const CachedWeight& cached) {
  constexpr double kTimesFresh = 2;
  const auto since = std::ranges::lower_bound(error.points, cached.since, {}, &Point::iteration);
  std::vector<double> fresh;
  for (const Point& point : std::ranges::subrange(error.points.begin(), since)) {
    if (std::isfinite(point.value)) fresh.push_back(point.value);
  }
  if (fresh.size() < kMinPastErrors) return std::nullopt;
  const double usual = median(fresh);
  std::vector<Point> wrong;  // consecutive reads
  for (const Point& point : std::ranges::subrange(since, error.points.end())) {
    if (!std::isfinite(point.value)) continue;
    if (point.value > kTimesFresh * usual) {
      wrong.push_back(point);
    } else if (wrong.size() < kMinWrongReads) {
      wrong.clear();
    }
  }
  if (wrong.size() < kMinWrongReads) return std::nullopt;
  const Point& worst = *std::ranges::max_element(wrong, {}, &Point::value);
  return Finding{
      .cause = "gemm_error",
      .place = error.place,
      .first = cached.since,
      .last = wrong.back().iteration,
      .confidence = cached.is_recorded ? kProven : kProbable,
      .summary = fmt::format(
          "{}, and the product is off by up to {:.2g} % (before: {:.2g} %)",
          cached.is_recorded
              ? "casts of the weight have stopped: the layer reuses a cached quantized weight"
              : "casts of the weight are no longer recorded, as with a cached quantized weight",
          100 * worst.value, 100 * usual),
      .evidence = {{"gemm_relative_error", error.place, worst.iteration, worst.value, ""},
                   {"gemm_relative_error", error.place, cached.since - 1, usual,
                    "usual, with a fresh cast"}},
      .next_step =
          "pass is_first_microbatch=True, or None, in the first forward after each optimizer step; "
          "look for other code that caches the quantized weight"};
}

std::optional<Finding> judge_gemm(const Facts& facts, const Series& error) {
  if (const auto cached = find_cached_weight(facts, error)) {
    if (auto finding = judge_cached_weight(error, *cached)) return finding;
  }
  return find_unexplained_error(facts, error);
}

std::vector<Finding> find_gemm_error(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* error : facts.with("gemm_relative_error")) {
    if (!error->place.gemm) continue;
    if (auto finding = judge_gemm(facts, *error)) {
      finding->place.tensor.reset();  // the GEMM, not one tensor
      found.push_back(std::move(*finding));
    }
  }
  return found;
}

}  // namespace

Rule gemm_error() {
  return {
      .cause = "gemm_error",
      .title = "unexplained GEMM error",
      .doc =
          "In 3 consecutive reads, the relative error of a GEMM result against FP64 is at least 3 "
          "times the error that the casts of its operands explain (dgrad: 4, wgrad: 5), at least "
          "10 % (dgrad: 25 %, wgrad: 45 %), and at least 3 times its earlier value. Possible "
          "causes are a wrong operand, layout, block axis, transpose or scale, or a faulty kernel. "
          "If the casts of the weight end and the GEMMs continue, the layer reuses a cached "
          "quantized weight; twice the error of a fresh cast is then enough. Casts that end "
          "because of the configuration's schedule do not count as ended.",
      .stage = Stage::values,
      .required = {"gemm_relative_error"},
      .optional = {"mse", "l2_norm", "numel", "std", "mean"},
      .recorded_by =
          "GemmError, with LogFp8TensorStats (mse) and LogTensorStats (l2_norm, "
          "numel) of the operands",
      .alternatives =
          "A result whose terms cancel almost completely; if casts of the weight are no longer "
          "recorded, weight statistics that end earlier.",
      .next_step =
          "telens ledger RUN --layer '{layer}'; the ledger shows which kernel ran, and "
          "configs/dump_one_gemm.yaml records the operands",
      .find = find_gemm_error};
}

}  // namespace telens::analysis
