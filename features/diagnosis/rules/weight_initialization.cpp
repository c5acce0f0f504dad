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
constexpr double kOffTheOthers = 5;  // bits, against all weights
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
    // Zeros are how residual branches and adapters begin.
    if (first.value > 0) firsts.push_back({series.place, first});
  }
  return firsts;
}

// The median over the weights of the same kind, or over all; NaN of too few.
double usual_size(const std::vector<First>& firsts, const Facts& facts, const std::string* part) {
  std::vector<double> sizes;
  for (const First& each : firsts) {
    if (part != nullptr && facts.part_of(each.place.layer) != *part) continue;
    sizes.push_back(bits(each.size.value));
  }
  return sizes.size() < kLeastOfKind ? std::nan("") : median(std::move(sizes));
}

std::vector<Finding> find(const Facts& facts) {
  std::vector<Finding> found;
  const std::vector<First> firsts = first_sizes(facts);
  for (const First& each : firsts) {
    const double size = bits(each.size.value);
    const double of_kind = usual_size(firsts, facts, &facts.part_of(each.place.layer));
    const double of_all = usual_size(firsts, facts, nullptr);
    const bool off_kind = std::abs(size - of_kind) > kOffItsKind;
    const bool off_all = std::abs(size - of_all) > kOffTheOthers;
    if (std::isnan(of_kind) ? !off_all : !off_kind) continue;
    const double usual = std::exp2(std::isnan(of_kind) ? of_all : of_kind);
    found.push_back(
        {.cause = "weight_initialization",
         .place = each.place,
         .first = each.size.iteration,
         .last = facts.last_iteration(),
         .confidence = kProbable,
         .summary = fmt::format("the weight begins with a root mean square of {:.3g}, {} with "
                                "{:.3g}",
                                each.size.value,
                                std::isnan(of_kind) ? "others" : "those of its kind", usual),
         .evidence = {
             {"l2_norm / sqrt(numel)", each.place, each.size.iteration, each.size.value, ""},
             {"l2_norm / sqrt(numel)", {}, each.size.iteration, usual, "usual"}}});
  }
  return found;
}

}  // namespace

Rule weight_initialization() {
  return {.cause = "weight_initialization",
          .title = "a weight that was not initialized as the others",
          .doc =
              "In the first iterations the root mean square of a weight is 6 times off that of "
              "the layers that play the same part in other blocks, or 32 times off all others. "
              "Zeros are how residual branches and adapters begin, and no finding.",
          .stage = Stage::setup,
          .required = {"l2_norm", "numel"},
          .recorded_by = "LogTensorStats of weights (l2_norm, numel), from the first iteration on",
          .alternatives = "A layer with an initialization of its own on purpose.",
          .next_step =
              "telens stats RUN --layer '{layer}' --tensor weight --stat std; "
              "reset_parameters() after to_empty(), and what a checkpoint did not hold",
          .find = find};
}

}  // namespace telens::diagnosis
