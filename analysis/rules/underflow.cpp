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

constexpr double kLeast = 10;           // percent of the elements
constexpr double kAvoids = 0.25;        // another recipe loses so much of it at the most
constexpr std::size_t kPersistent = 4;  // consecutive reads

struct Other {
  std::string_view statistic;
  std::string_view recipe;
  std::string_view advice;
};
constexpr std::array kOthers{
    Other{"fp8_current_scaling_underflows%", "current scaling",
          "PerTensorScaling for this tensor, or Float8CurrentScaling for the run"},
    Other{"mxfp8_underflows%", "MXFP8", "MXFP8BlockScaling for the run"},
};

// Usual earlier share if no other recipe was recorded.
constexpr double kLittle = 2;  // percent
constexpr std::ptrdiff_t kLeastPast = 4;

struct Stretch {
  Point first, worst;
  std::int64_t last = 0;
};

std::optional<Stretch> first_stretch(const Series& percent) {
  std::optional<Stretch> stretch;
  std::size_t consecutive = 0;
  for (const Point& point : percent.points) {
    if (!(point.value >= kLeast)) {
      if (consecutive >= kPersistent) return stretch;
      consecutive = 0;
      continue;
    }
    if (++consecutive == 1) stretch = Stretch{point, point, point.iteration};
    stretch->last = point.iteration;
    if (point.value > stretch->worst.value) stretch->worst = point;
  }
  return consecutive >= kPersistent ? stretch : std::nullopt;
}

// The loss under another recipe, in the worst iteration.
struct Kept {
  const Other* other = nullptr;
  double percent = 0;
};

// Those that were tried, the best first.
std::vector<Kept> others_tried(const Facts& facts, const Series& percent, const Point& worst) {
  std::vector<Kept> tried;
  for (const Other& other : kOthers) {
    const Series* series = facts.beside(percent, other.statistic);
    const auto value = series != nullptr ? series->at(worst.iteration) : std::nullopt;
    if (value) tried.push_back({&other, *value});
  }
  std::ranges::stable_sort(tried, {}, &Kept::percent);
  return tried;
}

// Advice from these figures only.
std::string suggest_next_step(const std::vector<Kept>& tried, double lost) {
  std::string step = "telens stats RUN --layer '{layer}' --stat underflows%";
  for (const Kept& each : tried) step += fmt::format(" --stat {}", each.other->statistic);
  for (const Kept& each : tried) {
    const bool keeps = each.percent < kAvoids * lost;
    step += fmt::format("; {} {} {:.3g} % here: {}", each.other->recipe,
                        keeps ? "would lose" : "would lose as much,", each.percent,
                        keeps ? each.other->advice : "no help");
  }
  for (const Other& other : kOthers) {
    if (std::ranges::find(tried, &other, &Kept::other) != tried.end()) continue;
    step += fmt::format("; to see whether {} would keep them, record {} with LogFp8TensorStats",
                        other.recipe, other.statistic);
  }
  return step;
}

bool tried_others(const Facts& facts, const Series& percent) {
  return std::ranges::any_of(kOthers, [&](const Other& other) {
    return facts.beside(percent, other.statistic) != nullptr;
  });
}

// Few elements were lost before, in each of the last reads.
bool is_sudden(const Series& percent, const Stretch& stretch) {
  const auto first =
      std::ranges::lower_bound(percent.points, stretch.first.iteration, {}, &Point::iteration);
  if (first - percent.points.begin() < kLeastPast) return false;
  return std::all_of(first - kLeastPast, first,
                     [](const Point& point) { return point.value < kLittle; });
}

std::optional<Finding> by_its_past(const Series& percent, const Stretch& stretch) {
  if (!is_sudden(percent, stretch)) return std::nullopt;
  return Finding{
      .cause = "underflow",
      .place = percent.place,
      .first = stretch.first.iteration,
      .last = stretch.last,
      .confidence = kProbable,
      .summary = fmt::format("{:.3g} % of the elements become zero in the cast, less than {} % "
                             "before",
                             stretch.worst.value, kLittle),
      .evidence = {{"underflows%", percent.place, stretch.worst.iteration, stretch.worst.value,
                    "largest"}},
      .next_step = suggest_next_step({}, stretch.worst.value)};
}

std::vector<Finding> find_underflow(const Facts& facts) {
  std::vector<Finding> found;
  for (const Series* percent : facts.with("underflows%")) {
    const auto stretch = first_stretch(*percent);
    if (!stretch) continue;
    if (!tried_others(facts, *percent)) {
      if (auto finding = by_its_past(*percent, *stretch)) found.push_back(std::move(*finding));
      continue;
    }
    const auto tried = others_tried(facts, *percent, stretch->worst);
    if (tried.empty() || !(tried.front().percent < kAvoids * stretch->worst.value)) continue;
    Finding finding{.cause = "underflow",
                    .place = percent->place,
                    .first = stretch->first.iteration,
                    .last = stretch->last,
                    .confidence = kProbable,
                    .summary = fmt::format("{:.3g} % of the elements become zero in the cast; {} "
                                           "would keep them",
                                           stretch->worst.value, tried.front().other->recipe),
                    .next_step = suggest_next_step(tried, stretch->worst.value)};
    finding.evidence = {
        {"underflows%", percent->place, stretch->worst.iteration, stretch->worst.value, "largest"}};
    for (const Kept& each : tried) {
      finding.evidence.push_back({std::string(each.other->statistic), percent->place,
                                  stretch->worst.iteration, each.percent, "instead"});
    }
    found.push_back(std::move(finding));
  }
  return found;
}

}  // namespace

Rule underflow() {
  return {
      .cause = "underflow",
      .title = "underflow that another recipe avoids",
      .doc =
          "At least a tenth of the elements become zero in 4 consecutive iterations. Another "
          "recorded recipe loses at most a quarter of that or, if none was recorded, fewer than 2 "
          "% were lost before. Zeros of the tensor itself, for example from ReLU or padding, do "
          "not count.",
      .stage = Stage::cast,
      .required = {"underflows%"},
      .optional = {"fp8_current_scaling_underflows%", "mxfp8_underflows%"},
      .recorded_by =
          "LogFp8TensorStats (underflows%, fp8_current_scaling_underflows%, "
          "mxfp8_underflows%)",
      .alternatives =
          "A wrong or stale scale (ScaleHealth shows it); outliers that the scale has to cover.",
      .next_step =
          "telens stats RUN --layer '{layer}' --stat underflows%; choose the recipe with the "
          "smallest loss in this run: PerTensorScaling for the tensor, Float8CurrentScaling or "
          "MXFP8BlockScaling for the run",
      .find = find_underflow};
}

}  // namespace telens::analysis
