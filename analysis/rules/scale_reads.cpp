#include "analysis/rules/scale_reads.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/baseline.h"

namespace telens::analysis {
namespace {

// Returns the bits between the smallest and the largest scale of the iteration; 0 if not recorded.
double span_of_scales(const Series* smallest, const Series* largest, std::int64_t iteration) {
  if (smallest == nullptr || largest == nullptr) return 0;
  const auto low = smallest->at(iteration);
  const auto high = largest->at(iteration);
  if (!low || !high || !(*low > 0) || !std::isfinite(*high)) return 0;
  return std::log2(*high / *low);
}

ScaleSeries from_scale_health(const Facts& facts, const Series& staleness) {
  ScaleSeries series{.place = staleness.place, .knows_margin = true};
  const Series* amax = facts.beside(staleness, "cur_amax");
  const Series* headroom = facts.beside(staleness, "scale_headroom");
  const Series* jump = facts.beside(staleness, "scale_jump");
  const Series* smallest = facts.beside(staleness, "scale_inv_min");
  const Series* biggest = facts.beside(staleness, "scale_inv_max");
  if (amax == nullptr || headroom == nullptr) return series;
  for (const auto& [iteration, stale] : staleness.points) {
    const auto largest = amax->at(iteration);
    const auto room = headroom->at(iteration);
    if (!largest || !(*largest > 0) || !std::isfinite(*largest) || !room) continue;
    if (!std::isfinite(stale) || !std::isfinite(*room)) continue;
    const double size = std::log2(*largest);
    series.reads.push_back({.iteration = iteration,
                            .amax = size,
                            .stands_for = size - stale,
                            .margin = stale + *room,
                            .span = span_of_scales(smallest, biggest, iteration),
                            .jump = jump != nullptr ? jump->at(iteration) : std::nullopt});
  }
  return series;
}

// How many reads stand for an amax between the newest and the largest one before, with so many bits
// added to the amaxes that they stand for.
std::size_t explained(const std::vector<ScaleRead>& reads, const std::vector<double>& largest,
                      double added) {
  constexpr double kRounding = 0.6;  // bits: scales may be powers of two
  std::size_t count = 0;
  for (std::size_t i = 1; i < reads.size(); ++i) {
    const double stands_for = reads[i].stands_for + added;
    // Current scaling takes the amax of the same iteration.
    const double newest = std::min(reads[i - 1].amax, reads[i].amax);
    const double most = std::max(largest[i - 1], reads[i].amax);
    if (stands_for > newest - kRounding && stands_for < most + kRounding) ++count;
  }
  return count;
}

// The amaxes that the scales stand for begin as log2(1 / scale); the largest value of the format is
// still to be added: the one that explains more reads.
void add_largest_value(std::vector<ScaleRead>& reads, const Series& amax) {
  const double of_e4m3 = std::log2(448.0);
  const double of_e5m2 = std::log2(57344.0);
  const std::vector<double> largest = largest_amaxes(reads, amax);
  const bool is_e5m2 = explained(reads, largest, of_e5m2) > explained(reads, largest, of_e4m3);
  for (ScaleRead& read : reads) read.stands_for += is_e5m2 ? of_e5m2 : of_e4m3;
}

ScaleSeries from_scales(const Facts& facts, const Series& inverse) {
  ScaleSeries series{.place = inverse.place};
  const Series* smallest = facts.beside(inverse, "scale_inv_min");
  const Series* amax = facts.beside(inverse, "cur_amax");
  if (smallest == nullptr || amax == nullptr) return series;
  for (const auto& [iteration, value] : inverse.points) {
    if (smallest->at(iteration) != value) return {.place = inverse.place};  // a scale a block
    const auto largest = amax->at(iteration);
    if (!largest || !(*largest > 0) || !std::isfinite(*largest)) continue;
    if (!(value > 0) || !std::isfinite(value)) continue;
    const double stands_for = std::log2(value);
    const bool follows = !series.reads.empty() && series.reads.back().iteration + 1 == iteration;
    series.reads.push_back({.iteration = iteration,
                            .amax = std::log2(*largest),
                            .stands_for = stands_for,
                            .jump = follows
                                        ? std::optional(series.reads.back().stands_for - stands_for)
                                        : std::nullopt});
  }
  if (!series.reads.empty()) add_largest_value(series.reads, *amax);
  return series;
}

}  // namespace

std::vector<ScaleSeries> scale_series(const Facts& facts) {
  std::vector<ScaleSeries> all;
  for (const Series* staleness : facts.with("scale_staleness")) {
    all.push_back(from_scale_health(facts, *staleness));
  }
  for (const Series* inverse : facts.with("scale_inv_max")) {
    if (facts.beside(*inverse, "scale_staleness") != nullptr) continue;
    all.push_back(from_scales(facts, *inverse));
  }
  std::erase_if(all, [](const ScaleSeries& series) { return series.reads.empty(); });
  return all;
}

std::vector<double> largest_amaxes(const std::vector<ScaleRead>& reads, const Series& amax) {
  std::vector<double> largest;
  auto next = amax.points.begin();
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  double so_far = std::log2(amax.largest_in_warm_up);
  std::optional<std::int64_t> not_finite;  // iteration
  for (const ScaleRead& read : reads) {
    for (; next != amax.points.end() && next->iteration <= read.iteration; ++next) {
      if (std::isfinite(next->value)) {
        so_far = std::max(so_far, bits(next->value));
      } else {
        not_finite = next->iteration;
      }
    }
    const bool is_held = not_finite && read.iteration - *not_finite <= kLongestHistory;
    largest.push_back(is_held ? kUnknown : so_far);
  }
  return largest;
}

}  // namespace telens::analysis
