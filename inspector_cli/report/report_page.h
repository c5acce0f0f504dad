// The page of `telens report` and `telens serve`: the charts of `telens plot`, findings, ranks,
// histograms, blocks, precision of GEMMs, configuration and environment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/diagnosis.h"
#include "core/base/json.h"
#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/page.h"
#include "record/run_reader.h"

namespace telens::cli {

// A heat map of layers by ranks. A bin is one rank or several neighboring ranks, with their worst
// value.
struct RankMap {
  std::string statistic;
  std::vector<Line> layers;  // the layers of the chart's panel that have values of single ranks
};

struct RankMaps {
  std::vector<int> ranks;  // the first rank per bin
  int last_rank = 0;
  std::vector<RankMap> maps;  // empty for one rank, or if all values were reduced over ranks
};

// Returns a heat map for each statistic of the chart. Skips values that were reduced over ranks,
// because they are equal on all ranks.
RankMaps make_rank_maps(const record::RunReader& run, const Chart& chart, std::size_t most_bins);

struct Report {
  std::string data;     // JSON for make_page
  std::string verdict;  // "no problems found"
};

// Reads the whole run, which may have no records yet. `name` is the run's name in suggested
// commands. Throws RecordError.
Report make_report(const record::RunReader& run, const std::string& name);

// Returns a list of sections with `title`, `place` ("before" or "after" the charts) and optional
// `note`, `findings`, `table` and `text`.
Json report_sections(const record::RunReader& run, const diagnosis::Facts& facts,
                     const diagnosis::Diagnosis& diagnosis, const std::string& name);

// Returns the charts without sections. `histograms` may be nullptr; its iterations must be the
// chart's.
Json report_data(const Chart& chart, const RankMaps& ranks, const HistogramChart* histograms);

}  // namespace telens::cli
