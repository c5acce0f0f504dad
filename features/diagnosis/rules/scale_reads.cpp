#include "features/diagnosis/rules/scale_reads.h"

#include <algorithm>
#include <cmath>

#include "features/diagnosis/baseline.h"

namespace telens::diagnosis {

std::vector<ScaleRead> scale_reads(const Facts& facts, const Series& staleness) {
  const Series* amax = facts.beside(staleness, "cur_amax");
  const Series* headroom = facts.beside(staleness, "scale_headroom");
  const Series* jump = facts.beside(staleness, "scale_jump");
  if (amax == nullptr || headroom == nullptr) return {};
  std::vector<ScaleRead> reads;
  for (const auto& [iteration, stale] : staleness.points) {
    const auto largest = amax->at(iteration);
    const auto room = headroom->at(iteration);
    if (!largest || !(*largest > 0) || !std::isfinite(*largest) || !room) continue;
    if (!std::isfinite(stale) || !std::isfinite(*room)) continue;
    const double size = std::log2(*largest);
    reads.push_back({.iteration = iteration,
                     .amax = size,
                     .stands_for = size - stale,
                     .margin = stale + *room,
                     .jump = jump != nullptr ? jump->at(iteration) : std::nullopt});
  }
  return reads;
}

std::vector<double> largest_amaxes(const std::vector<ScaleRead>& reads, const Series& amax) {
  std::vector<double> largest;
  auto next = amax.points.begin();
  double so_far = bits(0);
  for (const ScaleRead& read : reads) {
    for (; next != amax.points.end() && next->iteration <= read.iteration; ++next) {
      if (std::isfinite(next->value)) so_far = std::max(so_far, bits(next->value));
    }
    largest.push_back(so_far);
  }
  return largest;
}

}  // namespace telens::diagnosis
