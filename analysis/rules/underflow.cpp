#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/baseline.h"
#include "analysis/rules/rules.h"

namespace telens::analysis {
namespace {

constexpr double kMinUnderflow = 10;    // percent of the elements
constexpr double kMaxRemaining = 0.25;  // share of the underflow that another recipe may keep
constexpr std::size_t kMinUnderflowReads = 4;  // consecutive reads

struct OtherRecipe {
  std::string_view statistic;
  std::string_view recipe;
  std::string_view advice;
};
constexpr std::array kOtherRecipes{
    OtherRecipe{"fp8_current_scaling_underflows%", "current scaling",
                "PerTensorScaling for this tensor, or Float8CurrentScaling for the run"},
    OtherRecipe{"mxfp8_underflows%", "MXFP8", "MXFP8BlockScaling for the run"},
};

// Percent of the elements in each of the earlier reads. Used if no other recipe was recorded.
constexpr double kMaxPastUnderflow = 2;
constexpr std::ptrdiff_t kMinPastReads = 4;

// Consecutive reads with underflow.
struct UnderflowPeriod {
  Point first, worst;     // reads
  std::int64_t last = 0;  // iteration
};

std::optional<UnderflowPeriod> find_first_period(const Series& percent) {
  std::optional<UnderflowPeriod> period;
  std::size_t consecutive = 0;
  for (const Point& point : percent.points) {
    if (!(point.value >= kMinUnderflow)) {
      if (consecutive >= kMinUnderflowReads) return period;
      consecutive = 0;
      continue;
    }
    if (++consecutive == 1) period = UnderflowPeriod{point, point, point.iteration};
    period->last = point.iteration;
    if (point.value > period->worst.value) period->worst = point;
  }
  return consecutive >= kMinUnderflowReads ? period : std::nullopt;
}

// The underflow under another recipe in the worst iteration.
struct RecipeUnderflow {
  const OtherRecipe* other = nullptr;
  double percent = 0;
};

// Returns the recorded underflows under other recipes, smallest first.
std::vector<RecipeUnderflow> list_other_underflows(const Facts& facts, const Series& percent,
                                                   const Point& worst) {
  std::vector<RecipeUnderflow> recorded;
  for (const OtherRecipe& other : kOtherRecipes) {
    const Series* series = facts.beside(percent, other.statistic);
    const auto value = series != nullptr ? series->at(worst.iteration) : std::nullopt;
    if (value) recorded.push_back({&other, *value});
  }
  std::ranges::stable_sort(recorded, {}, &RecipeUnderflow::percent);
  return recorded;
}

// Bases its advice on the recorded values only.
std::string suggest_recipe(const std::vector<RecipeUnderflow>& recorded, double lost) {
  std::string step = "telens stats RUN --layer '{layer}' --stat underflows%";
  for (const RecipeUnderflow& each : recorded)
    step += fmt::format(" --stat {}", each.other->statistic);
  for (const RecipeUnderflow& each : recorded) {
    const bool keeps = each.percent < kMaxRemaining * lost;
    step +=
        fmt::format("; {} would lose {:.3g} % here{}{}", each.other->recipe, each.percent,
                    keeps ? ": use " : ", so it does not help", keeps ? each.other->advice : "");
  }
  for (const OtherRecipe& other : kOtherRecipes) {
    if (std::ranges::find(recorded, &other, &RecipeUnderflow::other) != recorded.end()) continue;
    step += fmt::format("; to see whether {} would keep them, record {} with LogFp8TensorStats",
                        other.recipe, other.statistic);
  }
  return step;
}

bool has_other_recipes(const Facts& facts, const Series& percent) {
  return std::ranges::any_of(kOtherRecipes, [&](const OtherRecipe& other) {
    return facts.beside(percent, other.statistic) != nullptr;
  });
}

// Returns true if few elements underflowed in each of the last reads before the period.
bool is_sudden_period(const Series& percent, const UnderflowPeriod& period) {
  const auto first =
      std::ranges::lower_bound(percent.points, period.first.iteration, {}, &Point::iteration);
  if (first - percent.points.begin() < kMinPastReads) return false;
  return std::all_of(first - kMinPastReads, first,
                     [](const Point& point) { return point.value < kMaxPastUnderflow; });
}

std::optional<Finding> judge_by_past(const Series& percent, const UnderflowPeriod& period) {
  if (!is_sudden_period(percent, period)) return std::nullopt;
  return Finding{.cause = "underflow",
                 .place = percent.place,
                 .first = period.first.iteration,
                 .last = period.last,
                 .confidence = kProbable,
                 .summary = fmt::format(
                     "{:.3g} % of the elements become zero in the cast (before: less than {} %)",
                     period.worst.value, kMaxPastUnderflow),
                 .evidence = {{"underflows%", percent.place, period.worst.iteration,
                               period.worst.value, "largest"}},
                 .next_step = suggest_recipe({}, period.worst.value)};
}

std::vector<Finding> find_underflow(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* percent : facts.with("underflows%")) {
    const auto period = find_first_period(*percent);
    if (!period) continue;
    if (!has_other_recipes(facts, *percent)) {
      if (auto finding = judge_by_past(*percent, *period)) found.push_back(std::move(*finding));
      continue;
    }
    const auto recorded = list_other_underflows(facts, *percent, period->worst);
    if (recorded.empty() || !(recorded.front().percent < kMaxRemaining * period->worst.value))
      continue;
    Finding finding{.cause = "underflow",
                    .place = percent->place,
                    .first = period->first.iteration,
                    .last = period->last,
                    .confidence = kProbable,
                    .summary = fmt::format(
                        "{:.3g} % of the elements become zero in the cast; {} would keep them",
                        period->worst.value, recorded.front().other->recipe),
                    .next_step = suggest_recipe(recorded, period->worst.value)};
    finding.evidence = {
        {"underflows%", percent->place, period->worst.iteration, period->worst.value, "largest"}};
    for (const RecipeUnderflow& each : recorded) {
      finding.evidence.push_back({std::string(each.other->statistic), percent->place,
                                  period->worst.iteration, each.percent, "under this recipe"});
    }
    found.push_back(std::move(finding));
  }
  return found;
}

}  // namespace

Rule underflow() {
  return {.cause = "underflow",
          .title = "underflow that another recipe avoids",
          .doc =
              "At least a tenth of the elements become zero in 4 consecutive iterations. Another "
              "recorded recipe loses at most a quarter of that or, if none was recorded, fewer "
              "than 2 % were lost before. Zeros of the tensor itself, for example from ReLU or "
              "padding, do not count.",
          .stage = Stage::cast,
          .required = {"underflows%"},
          .optional = {"fp8_current_scaling_underflows%", "mxfp8_underflows%"},
          .recorded_by =
              "LogFp8TensorStats (underflows%, fp8_current_scaling_underflows%, "
              "mxfp8_underflows%)",
          .alternatives =
              "A wrong or stale scale (ScaleHealth shows it); outliers that the scale must cover.",
          .next_step =
              "telens stats RUN --layer '{layer}' --stat underflows%; choose the recipe with the "
              "smallest loss in this run: PerTensorScaling for the tensor, Float8CurrentScaling or "
              "MXFP8BlockScaling for the run",
          .find = find_underflow};
}

}  // namespace telens::analysis
