#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <ranges>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/kept_codes.h"
#include "analysis/rules/rules.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

// Relative error: FP8 has 0.03 to 0.1, and 0.3 in single weight gradients whose terms cancel; with
// another operand it is 1.4, with a scale that is off by 2 it is 0.5 or 1, and with the weight of
// twenty steps ago 0.1 to 0.3.
struct Limits {
  double least;
  double times_expected;  // the error that the operands' casts explain
};

// Maxima over three consecutive reads of healthy runs, as error and as multiple of the explained
// error: fprop 0.07 and 1.7, dgrad 0.11 and 2.1, wgrad 0.2 and 3.7, because terms of wgrad cancel
// if there are many tokens.
Limits get_limits(Gemm gemm) {
  switch (gemm) {
    case Gemm::fprop:
      return {.least = 0.1, .times_expected = 3};
    case Gemm::dgrad:
      return {.least = 0.25, .times_expected = 4};
    case Gemm::wgrad:
      break;
  }
  return {.least = 0.45, .times_expected = 5};
}

constexpr double kTimesUsual = 3;    // the error in its own past, if it has one
constexpr double kLeavesPast = 1.3;  // factor over the smaller past errors at which growth begins
constexpr double kRounding = 0.01;   // BF16 outputs, and sums that cancel
constexpr std::size_t kLeastPast = 4;
constexpr std::size_t kPersistent = 3;  // reads on end; a single product may cancel

std::array<TensorName, 2> get_operands(Gemm gemm) {
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
constexpr double kMostOfCast = 1.05;

// sqrt(mse) / root mean square; 0 if not recorded, as in high precision.
double cast_error(const Facts& facts, Place place, std::int64_t iteration) {
  const Series* mse = facts.find(place, "mse");
  const auto error = mse != nullptr ? mse->at(iteration) : std::nullopt;
  const auto size = root_mean_square(facts, place, iteration);
  if (!error || !size || !(*size > 0)) return 0;
  const double relative = std::sqrt(std::max(0.0, *error)) / *size;
  return relative > kMostOfCast ? 0 : relative;
}

// Errors of independent operands add up as squares.
double explained(const Facts& facts, const Series& error, std::int64_t iteration) {
  double sum = kRounding * kRounding;
  for (const TensorName tensor : get_operands(*error.place.gemm)) {
    Place place = error.place;
    place.tensor = tensor;
    const double each = cast_error(facts, place, iteration);
    sum += each * each;
  }
  return std::sqrt(sum);
}

Finding gemm_error_finding(const Series& error, const Point& first, double expected) {
  return {
      .cause = "gemm_error",
      .place = error.place,
      .first = first.iteration,
      .last = first.iteration,
      .confidence = kProven,
      .summary = fmt::format("the product is off by {:.0f} %, of which the casts of its operands "
                             "explain {:.2g} %",
                             100 * first.value, 100 * expected),
      .evidence = {
          {"gemm_relative_error", error.place, first.iteration, first.value, ""},
          {"sqrt(mse) / rms of the operands", error.place, first.iteration, expected, "expected"}}};
}

// The first of the iterations before in which the error had left its past already: an operand that
// is not renewed any more is wrong since then, and a little more so in each iteration.
std::int64_t began(const Series& error, std::int64_t first, std::vector<double> past) {
  if (past.size() < kLeastPast) return first;
  std::ranges::sort(past);
  const double edge = kLeavesPast * past[past.size() / 4];
  auto point = std::ranges::lower_bound(error.points, first, {}, &Point::iteration);
  constexpr double kJump = 2;  // times the error before: it began there
  if (point != error.points.begin() && point->value > kJump * std::prev(point)->value) return first;
  while (point != error.points.begin() && std::prev(point)->value > edge) --point;
  return point->iteration;
}

std::optional<Finding> in_gemm(const Facts& facts, const Series& error) {
  const Limits limits = get_limits(*error.place.gemm);
  std::vector<double> past;
  std::vector<Point> wrong;  // on end
  std::optional<Finding> found;
  for (const Point& point : error.points) {
    // Infinite: the exact product is zero, and so are the gradients.
    if (!std::isfinite(point.value)) continue;
    const double expected = explained(facts, error, point.iteration);
    const bool unusual = past.size() < kLeastPast || point.value > kTimesUsual * median(past);
    if (!unusual || point.value <= std::max(limits.least, limits.times_expected * expected)) {
      wrong.clear();
      if (!found) past.push_back(point.value);
      continue;
    }
    wrong.push_back(point);
    if (found && wrong.size() >= kPersistent) found->last = point.iteration;
    if (!found && wrong.size() == kPersistent) {
      found = gemm_error_finding(error, wrong.front(),
                                 explained(facts, error, wrong.front().iteration));
      found->first = began(error, found->first, past);
      found->last = point.iteration;
    }
  }
  return found;
}

// A cached quantized weight of a weight that has changed since. At twice the error of a fresh cast,
// its age costs more than the cast, because independent errors add as squares. If the weight does
// not change, the cache costs nothing.
std::optional<Finding> with_kept_codes(const Series& error, const KeptCodes& kept) {
  constexpr double kTimesFresh = 2;
  const auto since = std::ranges::lower_bound(error.points, kept.since, {}, &Point::iteration);
  std::vector<double> fresh;
  for (const Point& point : std::ranges::subrange(error.points.begin(), since)) {
    if (std::isfinite(point.value)) fresh.push_back(point.value);
  }
  if (fresh.size() < kLeastPast) return std::nullopt;
  const double usual = median(fresh);
  std::vector<Point> wrong;  // on end
  for (const Point& point : std::ranges::subrange(since, error.points.end())) {
    if (!std::isfinite(point.value)) continue;
    if (point.value > kTimesFresh * usual) {
      wrong.push_back(point);
    } else if (wrong.size() < kPersistent) {
      wrong.clear();
    }
  }
  if (wrong.size() < kPersistent) return std::nullopt;
  const Point& worst = *std::ranges::max_element(wrong, {}, &Point::value);
  return Finding{
      .cause = "gemm_error",
      .place = error.place,
      .first = kept.since,
      .last = wrong.back().iteration,
      .confidence = kept.is_looked_at ? kProven : kProbable,
      .summary = fmt::format(
          "{}, and the product is off by up to {:.2g} %, {:.2g} % before",
          kept.is_looked_at
              ? "casts of the weight have stopped: the layer reuses a cached quantized weight"
              : "no cast of the weight is recorded any more, as with a cached quantized weight",
          100 * worst.value, 100 * usual),
      .evidence = {{"gemm_relative_error", error.place, worst.iteration, worst.value, ""},
                   {"gemm_relative_error", error.place, kept.since - 1, usual,
                    "usual, with a fresh cast"}},
      .next_step =
          "pass is_first_microbatch=True, or None, in the first forward after each optimizer step; "
          "look for other code that caches the quantized weight"};
}

std::optional<Finding> of_gemm(const Facts& facts, const Series& error) {
  if (const auto kept = kept_codes(facts, error)) {
    if (auto finding = with_kept_codes(error, *kept)) return finding;
  }
  return in_gemm(facts, error);
}

std::vector<Finding> find_gemm_error(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* error : facts.with("gemm_relative_error")) {
    if (!error->place.gemm) continue;
    if (auto finding = of_gemm(facts, *error)) {
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
          "A result whose terms cancel almost completely; if no cast of the weight is recorded any "
          "more, weight statistics that end earlier.",
      .next_step =
          "telens ledger RUN --layer '{layer}'; the ledger shows which kernel ran, and "
          "configs/dump_one_gemm.yaml keeps the operands",
      .find = find_gemm_error};
}

}  // namespace telens::analysis
