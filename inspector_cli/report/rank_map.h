// Heat maps of layers by ranks, for each statistic of a chart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "inspector_cli/report/chart.h"
#include "record/run_reader.h"

namespace telens::cli {

// A bin is one rank or several neighboring ranks, with their worst value.
struct RankMap {
  std::string statistic;
  std::vector<Line> layers;  // the layers of the chart's panel that have values of single ranks
};

struct RankMaps {
  std::vector<int> ranks;  // the first rank per bin
  int last_rank = 0;
  std::vector<RankMap> maps;  // empty for one rank, or if all values were reduced over ranks
};

// Skips values that were reduced over ranks, because they are equal on all ranks.
RankMaps make_rank_maps(const record::RunReader& run, const Chart& chart, std::size_t most_bins);

}  // namespace telens::cli
