// The page of `telens report`: the charts of `telens plot`, and beside them findings, what GEMMs
// ran in, configuration and environment.
#pragma once

#include <string>

#include "features/diagnosis/diagnosis.h"
#include "features/record/run_reader.h"
#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/terminal/json.h"

namespace telens::cli {

// A list of sections: `title`, `place` ("before" or "after" the charts), and any of `note`,
// `findings`, `table`, `text`. `name`: the run, as the commands that are proposed name it.
Json report_sections(const record::RunReader& run, const diagnosis::Facts& facts,
                     const diagnosis::Diagnosis& diagnosis, const std::string& name);

// histograms: nullptr, or charts of the same iterations; others are left out.
std::string draw_report(const Chart& chart, const HistogramChart* histograms, Json sections);

}  // namespace telens::cli
