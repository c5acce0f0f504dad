// How the ranks of a run stand beside each other: layers by ranks, for each statistic of a chart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "inspector_cli/report/chart.h"
#include "record/run_reader.h"

namespace telens::cli {

// A bin is a rank, or some neighboring ones: the gravest value that any of them recorded.
struct RankMap {
  std::string statistic;
  std::vector<Line> layers;  // those of the chart's panel that have values of single ranks
};

struct RankMaps {
  std::vector<int> ranks;  // the first one of each bin
  int last_rank = 0;
  std::vector<RankMap> maps;  // none: one rank, or all values were reduced over ranks
};

// Values that were reduced over a group, and so are the same on its ranks, are left out.
RankMaps make_rank_maps(const record::RunReader& run, const Chart& chart, std::size_t most_bins);

}  // namespace telens::cli
