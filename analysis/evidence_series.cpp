#include "analysis/evidence_series.h"

#include <algorithm>
#include <map>
#include <utility>

#include "analysis/baseline.h"
#include "analysis/sizes.h"

namespace telens::analysis {
namespace {

constexpr std::size_t kLeastPoints = 2;

// All series of a statistic of this tensor, as evidence names it.
std::vector<Series> all_series(const Facts& facts, const Evidence& evidence) {
  if (evidence.statistic == "root mean square") {
    return root_mean_squares(facts, *evidence.place.tensor);
  }
  std::vector<Series> all;
  for (const Series* series : facts.with(evidence.statistic)) {
    if (series->place.tensor == evidence.place.tensor) all.push_back(*series);
  }
  return all;
}

std::vector<Point> medians(const std::vector<const Series*>& peers) {
  std::map<std::int64_t, std::vector<double>> values;
  for (const Series* peer : peers) {
    for (const auto& [iteration, value] : peer->points) values[iteration].push_back(value);
  }
  std::vector<Point> points;
  for (auto& [iteration, of_iteration] : values) {
    points.push_back({iteration, median(std::move(of_iteration))});
  }
  return points;
}

}  // namespace

std::optional<EvidenceSeries> find_evidence_series(const Finding& finding, const Facts& facts) {
  for (const Evidence& evidence : finding.evidence) {
    const Place& place = evidence.place;
    if (!place.tensor || place.layer != finding.place.layer) continue;
    const std::vector<Series> all = all_series(facts, evidence);
    const auto own = std::ranges::find_if(all, [&](const Series& series) {
      return series.place.layer == place.layer && series.place.rank == place.rank &&
             (!place.gemm || series.place.gemm == place.gemm);
    });
    if (own == all.end() || own->points.size() < kLeastPoints) continue;
    const std::string kind = facts.get_kind(place.layer);
    std::vector<const Series*> peers;
    for (const Series& series : all) {
      const bool is_peer = series.place.layer != place.layer && series.place.rank == place.rank &&
                           series.place.gemm == own->place.gemm &&
                           facts.get_kind(series.place.layer) == kind;
      if (is_peer) peers.push_back(&series);
    }
    return EvidenceSeries{.statistic = evidence.statistic,
                          .place = own->place,
                          .points = own->points,
                          .peers = medians(peers),
                          .peer_count = peers.size()};
  }
  return std::nullopt;
}

}  // namespace telens::analysis
