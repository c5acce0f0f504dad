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
  ScaleSeries series{.place = staleness.place, .has_margin = true};
  const Series* amax = facts.beside(staleness, "cur_amax");
  const Series* headroom = facts.beside(staleness, "scale_headroom");
  const Series* jump = facts.beside(staleness, "scale_jump");
  const Series* smallest = facts.beside(staleness, "scale_inv_min");
  const Series* largest_scale_inv = facts.beside(staleness, "scale_inv_max");
  if (amax == nullptr || headroom == nullptr) return series;
  for (const auto& [iteration, stale] : staleness.points) {
    const auto largest = amax->at(iteration);
    const auto room = headroom->at(iteration);
    if (!largest || !(*largest > 0) || !std::isfinite(*largest) || !room) continue;
    if (!std::isfinite(stale) || !std::isfinite(*room)) continue;
    const double size = std::log2(*largest);
    series.reads.push_back({.iteration = iteration,
                            .amax = size,
                            .scale_amax = size - stale,
                            .margin = stale + *room,
                            .span = span_of_scales(smallest, largest_scale_inv, iteration),
                            .jump = jump != nullptr ? jump->at(iteration) : std::nullopt});
  }
  return series;
}

// Returns the number of reads whose scale_amax, plus `added` bits, is between the newest and the
// largest earlier amax.
std::size_t count_explained_reads(const std::vector<ScaleRead>& reads,
                                  const std::vector<double>& largest, double added) {
  constexpr double kScaleRounding = 0.6;  // bits: scales may be powers of two
  std::size_t count = 0;
  for (std::size_t i = 1; i < reads.size(); ++i) {
    const double scale_amax = reads[i].scale_amax + added;
    // Current scaling uses the amax of the same iteration.
    const double newest = std::min(reads[i - 1].amax, reads[i].amax);
    const double most = std::max(largest[i - 1], reads[i].amax);
    if (scale_amax > newest - kScaleRounding && scale_amax < most + kScaleRounding) ++count;
  }
  return count;
}

// Adds log2 of the largest value of the format to each scale_amax, which is still log2(1 / scale).
// The format is not recorded: uses E4M3 (448) or E5M2 (57344), whichever explains more reads.
void add_largest_value(std::vector<ScaleRead>& reads, const Series& amax) {
  const double of_e4m3 = std::log2(448.0);
  const double of_e5m2 = std::log2(57344.0);
  const std::vector<double> largest = largest_amaxes(reads, amax);
  const bool is_e5m2 = count_explained_reads(reads, largest, of_e5m2) >
                       count_explained_reads(reads, largest, of_e4m3);
  for (ScaleRead& read : reads) read.scale_amax += is_e5m2 ? of_e5m2 : of_e4m3;
}

ScaleSeries from_scales(const Facts& facts, const Series& inverse) {
  ScaleSeries series{.place = inverse.place};
  const Series* smallest = facts.beside(inverse, "scale_inv_min");
  const Series* amax = facts.beside(inverse, "cur_amax");
  if (smallest == nullptr || amax == nullptr) return series;
  for (const auto& [iteration, value] : inverse.points) {
    if (smallest->at(iteration) != value) return {.place = inverse.place};  // one scale per block
    const auto largest = amax->at(iteration);
    if (!largest || !(*largest > 0) || !std::isfinite(*largest)) continue;
    if (!(value > 0) || !std::isfinite(value)) continue;
    const double scale_amax = std::log2(value);
    const bool is_consecutive =
        !series.reads.empty() && series.reads.back().iteration + 1 == iteration;
    series.reads.push_back({.iteration = iteration,
                            .amax = std::log2(*largest),
                            .scale_amax = scale_amax,
                            .jump = is_consecutive
                                        ? std::optional(series.reads.back().scale_amax - scale_amax)
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
  std::optional<std::int64_t> last_nonfinite;  // iteration
  for (const ScaleRead& read : reads) {
    for (; next != amax.points.end() && next->iteration <= read.iteration; ++next) {
      if (std::isfinite(next->value)) {
        so_far = std::max(so_far, bits(next->value));
      } else {
        last_nonfinite = next->iteration;
      }
    }
    const bool may_be_in_history =
        last_nonfinite && read.iteration - *last_nonfinite <= kLongestHistory;
    largest.push_back(may_be_in_history ? kUnknown : so_far);
  }
  return largest;
}

}  // namespace telens::analysis
