#include "inspector_cli/report/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "analysis/rules.h"
#include "analysis/run_state.h"
#include "core/base/error.h"
#include "core/base/text.h"

namespace telens::cli {
namespace {

using analysis::get_state;
using analysis::RunState;

// Limits that keep a page below 5 MB. A cell takes 12 to 15 bytes: 2 MB for heat maps, 1 MB for
// their tensors, 0.5 MB for ranks and 0.5 MB for histograms.
constexpr std::size_t kPanels = 5;
constexpr std::size_t kMostLayers = 300;
constexpr std::size_t kMapCells = 120'000;
constexpr std::size_t kTensorCells = 60'000;
constexpr std::size_t kRankCells = 30'000;
constexpr std::size_t kMostBins = 240;
constexpr std::size_t kFewestBins = 60;
constexpr HistogramLimits kHistograms{.bins = kMostBins, .tensors = 4, .rows = 48};

std::size_t bins_within(std::size_t cells, std::size_t layers) {
  const std::size_t rows = kPanels * std::clamp<std::size_t>(layers, 1, kMostLayers);
  return std::min(kMostBins, cells / rows);
}

Chart make_chart(const record::RunReader& run, std::size_t layers) {
  const ChartLimits limits{.bins = std::max(kFewestBins, bins_within(kMapCells, layers)),
                           .lines = 6,
                           .panels = kPanels,
                           .layers = kMostLayers,
                           .tensor_bins = kTensorCells / kPanels};
  return run.record_count() == 0 ? make_scalar_chart(run, limits) : make_chart(run, {}, limits);
}

std::optional<HistogramChart> make_histogram_chart(const record::RunReader& run,
                                                   const Chart& chart) {
  record::RecordQuery query;
  query.first_iteration = chart.first_iteration;
  query.last_iteration = chart.last_iteration;
  try {
    return make_histogram_chart(run, query, kHistograms, &chart);
  } catch (const UsageError&) {
    return std::nullopt;  // a run without ValueHistogram
  }
}

std::string_view get_gravity(const RunState& state) {
  if (state.condition == analysis::Condition::failed) return "grave";
  if (state.condition == analysis::Condition::warning) return "notable";
  return state.condition == analysis::Condition::live ? "fine" : "plain";
}

std::string describe_verdict(const diagnosis::Diagnosis& found) {
  const std::size_t problems = found.findings.size();
  if (problems > 0) return fmt::format("{} problem{} found", problems, problems == 1 ? "" : "s");
  const bool is_empty = found.first_iteration > found.last_iteration;
  return is_empty ? "nothing to diagnose" : "no problems found";
}

}  // namespace

Report make_report(const record::RunReader& run, const std::string& name) {
  const diagnosis::Facts facts(run, diagnosis::statistics_of_rules());
  const diagnosis::Diagnosis found = diagnosis::diagnose(facts);
  const std::size_t layers = run.names(record::Dictionary::layer).size();
  const Chart chart = make_chart(run, layers);
  const auto histograms = make_histogram_chart(run, chart);
  const RankMaps ranks =
      make_rank_maps(run, chart, std::max<std::size_t>(2, bins_within(kRankCells, layers)));
  Json data = report_data(chart, ranks, histograms ? &*histograms : nullptr);
  const RunState state = get_state(run);
  data["state"] = {{"text", json_text(printable(state.text))}, {"gravity", get_gravity(state)}};
  data["sections"] = report_sections(run, facts, found, name);
  std::string verdict = describe_verdict(found);
  data["title"] = json_text(fmt::format("{}, {}", chart.title(), verdict));
  return {.data = json_for_html(data), .verdict = std::move(verdict)};
}

}  // namespace telens::cli
