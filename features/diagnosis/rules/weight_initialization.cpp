#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "features/diagnosis/baseline.h"
#include "features/diagnosis/rules/rules.h"
#include "features/diagnosis/sizes.h"

namespace telens::diagnosis {
namespace {

constexpr double kOffItsKind = 2.5;  // bits, with three layers of the kind and more
constexpr double kOffTheOthers = 4;  // bits, against all weights
constexpr std::size_t kLeastOfKind = 3;
constexpr std::int64_t kBeginning = 2;  // iterations; later it is no matter of initialization

struct First {
  Place place;
  Point size;  // root mean square
};

std::vector<First> first_sizes(const Facts& facts) {
  std::vector<First> firsts;
  for (const Series& series : root_mean_squares(facts, TensorName::weight)) {
    if (series.points.empty()) continue;
    const Point& first = series.points.front();
    if (first.iteration > facts.first_iteration() + kBeginning) continue;
    firsts.push_back({series.place, first});
  }
  return firsts;
}

// The median over the weights of the same kind, or over all, without zeros; NaN of too few, or
// where zeros are usual.
double usual_size(const std::vector<First>& firsts, const Facts& facts, const std::string* part) {
  std::vector<double> sizes;
  std::size_t all = 0;
  for (const First& each : firsts) {
    if (part != nullptr && facts.select_part(each.place.layer) != *part) continue;
    ++all;
    if (each.size.value > 0) sizes.push_back(bits(each.size.value));
  }
  const bool few = all < kLeastOfKind || 2 * sizes.size() <= all;
  return few ? std::nan("") : median(std::move(sizes));
}

bool is_constant(const Facts& facts, const First& first) {
  const Series* deviation = facts.find(first.place, "std");
  return first.size.value > 0 && deviation != nullptr && deviation->at(first.size.iteration) == 0;
}

// nullopt: as the others. Zeros are how residual branches and adapters begin, all of a kind.
std::optional<Finding> judged(const Facts& facts, const std::vector<First>& firsts,
                              const First& each) {
  const double size = bits(each.size.value);
  const double of_kind = usual_size(firsts, facts, &facts.select_part(each.place.layer));
  const double of_all = usual_size(firsts, facts, nullptr);
  const bool alone = std::isnan(of_kind);
  const bool off = alone ? each.size.value > 0 && std::abs(size - of_all) > kOffTheOthers
                         : std::abs(size - of_kind) > kOffItsKind;
  const bool constant = is_constant(facts, each);
  if (!off && !constant) return std::nullopt;
  const double usual = std::exp2(alone ? of_all : of_kind);
  return Finding{
      .cause = "weight_initialization",
      .place = each.place,
      .first = each.size.iteration,
      .last = facts.last_iteration(),
      .confidence = constant ? kProven : kProbable,
      .summary = constant
                     ? fmt::format("all elements of the weight begin as {:.3g}", each.size.value)
                     : fmt::format("the weight begins with a root mean square of {:.3g}, {} "
                                   "with {:.3g}",
                                   each.size.value, alone ? "others" : "those of its kind", usual),
      .evidence = {{"root mean square", each.place, each.size.iteration, each.size.value, ""},
                   {"root mean square", {}, each.size.iteration, usual, "usual"}}};
}

std::vector<Finding> find(const Facts& facts) {
  std::vector<Finding> found;
  const std::vector<First> firsts = first_sizes(facts);
  for (const First& each : firsts) {
    if (auto finding = judged(facts, firsts, each)) found.push_back(std::move(*finding));
  }
  return found;
}

}  // namespace

Rule weight_initialization() {
  return {.cause = "weight_initialization",
          .title = "a weight that was not initialized as the others",
          .doc =
              "In the first iterations the root mean square of a weight is 6 times off that of "
              "the layers that play the same part in other blocks, or 16 times off all others, or "
              "all of its elements are the same. Zeros are how residual branches and adapters "
              "begin: they are a finding where others of their kind are not zero.",
          .stage = Stage::setup,
          .required = {kSizes},
          .optional = {"numel", "mean"},
          .recorded_by =
              "LogTensorStats of weights (l2_norm and numel, or std and mean), from the first "
              "iteration on",
          .alternatives = "A layer with an initialization of its own on purpose.",
          .next_step =
              "telens stats RUN --layer '{layer}' --tensor weight --stat std; "
              "reset_parameters() after to_empty(), and what a checkpoint did not hold",
          .find = find};
}

}  // namespace telens::diagnosis
