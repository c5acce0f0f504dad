// The page of `telens report` and `telens serve`: the charts of `telens plot`, and beside them
// findings, ranks, histograms, blocks, what GEMMs ran in, configuration and environment.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "analysis/diagnosis.h"
#include "core/base/json.h"
#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/page.h"
#include "inspector_cli/report/rank_map.h"
#include "record/run_reader.h"

namespace telens::cli {

struct Report {
  std::string data;     // JSON that may stand in a page
  std::string verdict;  // "no problems found"
};

// Reads all of a run, also of one that has no records yet. `name`: the run, as the commands that
// are proposed name it. Throws RecordError.
Report make_report(const record::RunReader& run, const std::string& name);

// A list of sections: `title`, `place` ("before" or "after" the charts), and any of `note`,
// `findings`, `table`, `text`.
Json report_sections(const record::RunReader& run, const diagnosis::Facts& facts,
                     const diagnosis::Diagnosis& diagnosis, const std::string& name);

// The charts, without sections. histograms: nullptr, or charts over the iterations of `chart`.
Json report_data(const Chart& chart, const RankMaps& ranks, const HistogramChart* histograms);

}  // namespace telens::cli
