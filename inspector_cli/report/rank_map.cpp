#include "inspector_cli/report/rank_map.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "analysis/severity.h"
#include "analysis/warm_up.h"

namespace telens::cli {
namespace {

using analysis::catalogue_rows;
using analysis::is_bad;
using analysis::WarmUp;

// The ranks of a run and the bins that they fall into.
class RankBins {
 public:
  RankBins(const record::RunReader& run, std::size_t most) {
    std::set<int> ranks;
    for (const auto& segment : run.segments()) ranks.insert(segment.rank);
    ranks_.assign(ranks.begin(), ranks.end());
    bins_ = std::min(most, ranks_.size());
  }

  std::size_t bins() const { return bins_; }
  const std::vector<int>& ranks() const { return ranks_; }
  std::size_t get_bin(int rank) const {
    const auto place = std::ranges::lower_bound(ranks_, rank) - ranks_.begin();
    return static_cast<std::size_t>(place) * bins_ / ranks_.size();
  }

 private:
  std::vector<int> ranks_;
  std::size_t bins_ = 0;
};

using Cells = std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Bin>>;

// Fills the cells, which already exist for the chart's statistics and layers.
void fill(Cells& cells, const record::RunReader& run, const Chart& chart, const RankBins& bins) {
  record::RecordQuery query;
  query.first_iteration = chart.first_iteration;
  query.last_iteration = chart.last_iteration;
  query.statistics.emplace();
  for (const Panel& panel : chart.panels) query.statistics->push_back(panel.id);
  const WarmUp warm_up(run);
  const std::vector<StatisticId> statistics = catalogue_rows(run);
  run.read(query, [&](int rank, std::span<const record::Record> records) {
    const std::size_t bin = bins.get_bin(rank);
    for (const record::Record& each : records) {
      if (each.scope != record::kNoName || each.statistic == record::kNoName) continue;
      const auto found = cells.find({each.statistic, each.layer});
      if (found == cells.end()) continue;
      const bool bad = is_bad(statistics[each.statistic], each.value);
      found->second.resize(bins.bins());
      found->second[bin].add(each.value, !bad && warm_up.covers(each.layer, each.iteration));
    }
  });
}

}  // namespace

RankMaps make_rank_maps(const record::RunReader& run, const Chart& chart, std::size_t most_bins) {
  RankMaps result;
  const RankBins bins(run, most_bins);
  if (bins.ranks().size() < 2 || chart.panels.empty()) return result;
  Cells cells;
  for (const Panel& panel : chart.panels) {
    for (const std::int32_t layer : panel.layer_ids) cells[{panel.id, layer}];
  }
  fill(cells, run, chart, bins);
  for (const Panel& panel : chart.panels) {
    RankMap map{.statistic = panel.statistic, .layers = {}};
    for (std::size_t i = 0; i < panel.layers.size(); ++i) {
      auto& found = cells[{panel.id, panel.layer_ids[i]}];
      if (!found.empty()) map.layers.push_back({panel.layers[i].label, std::move(found)});
    }
    if (!map.layers.empty()) result.maps.push_back(std::move(map));
  }
  for (const int rank : bins.ranks()) {
    if (bins.get_bin(rank) == result.ranks.size()) result.ranks.push_back(rank);
  }
  result.last_rank = bins.ranks().back();
  return result;
}

}  // namespace telens::cli
