// The data of a page: charts as JSON, which page.html draws.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/page_template.h"
#include "inspector_cli/report/report_page.h"
#include "inspector_cli/report/scale.h"
#include "inspector_cli/terminal/json.h"
#include "inspector_cli/terminal/layer_labels.h"

namespace telens::cli {
namespace {

// Places of Scale, 0 to 1, become whole numbers: short texts, and finer than any pixel.
constexpr double kHighestPlace = 10000;

std::int64_t page_place(double place) { return std::lround(place * kHighestPlace); }

// Six digits, as many as a person reads.
Json rounded(double value) {
  if (!std::isfinite(value)) return json_number(value);
  const std::string text = fmt::format("{:.6g}", value);
  double shorter = 0;
  std::from_chars(text.data(), text.data() + text.size(), shorter);
  return shorter;
}

// null: nothing was recorded there. A value that has no place is not finite, or of warm-up.
Json row_json(const Line& line, const Scale& scale) {
  Json values = Json::array();
  Json places = Json::array();
  for (const Bin& bin : line.bins) {
    values.push_back(bin.seen() ? rounded(bin.value()) : Json());
    places.push_back(bin.drawn() ? Json(page_place(scale.place(bin.value()))) : Json());
  }
  return {{"label", json_text(line.label)},
          {"label46", json_text(shortened(line.label, 46))},
          {"label20", json_text(shortened(line.label, 20))},
          {"values", std::move(values)},
          {"places", std::move(places)}};
}

Json chart_json(std::string_view kind, const std::string& title, const std::vector<Line>& lines,
                const Scale& scale) {
  Json ticks = Json::array();
  for (const auto& [place, label] : scale.ticks()) ticks.push_back({page_place(place), label});
  Json rows = Json::array();
  for (const Line& line : lines) rows.push_back(row_json(line, scale));
  std::string highest = fmt::format("{:.4g}", scale.value_at(1));
  if (!scale.short_note().empty()) highest += ", " + scale.short_note();
  return {{"kind", kind},
          {"title", json_text(title)},
          {"note", scale.note()},
          {"unit", ""},
          {"ticks", std::move(ticks)},
          {"lowest", fmt::format("{:.4g}", scale.value_at(0))},
          {"highest", std::move(highest)},
          {"rows", std::move(rows)}};
}

std::string_view name_of(Gravity gravity) {
  switch (gravity) {
    case Gravity::grave:
      return "grave";
    case Gravity::notable:
      return "notable";
    case Gravity::fine:
      return "fine";
    case Gravity::plain:
      break;
  }
  return "plain";
}

Json headlines_json(const Chart& chart) {
  Json headlines = Json::array();
  for (const auto& [text, gravity] : chart.headlines) {
    headlines.push_back({{"text", json_text(text)}, {"gravity", name_of(gravity)}});
  }
  return headlines;
}

Json trouble_json(const Chart& chart) {
  const auto& bad = chart.trouble.nonfinite;
  const bool shown =
      bad && bad->iteration >= chart.first_iteration && bad->iteration <= chart.last_iteration;
  return shown ? Json{{"bin", chart.bin_of(bad->iteration)}} : Json();
}

// `sections`: what a report says beside the charts.
std::string page(const Chart& chart, Json charts, Json sections = Json::array()) {
  Json iterations = Json::array();
  for (std::size_t b = 0; b < chart.bins; ++b) iterations.push_back(chart.iteration_of(b));
  Json ticks = Json::array();
  for (const std::int64_t iteration : chart.iteration_ticks()) {
    ticks.push_back({chart.bin_of(iteration), iteration});
  }
  const Json data{{"run", json_text(chart.run_id)},        {"subtitle", json_text(chart.subtitle)},
                  {"headlines", headlines_json(chart)},    {"iterations", std::move(iterations)},
                  {"lastIteration", chart.last_iteration}, {"iterationTicks", std::move(ticks)},
                  {"trouble", trouble_json(chart)},        {"charts", std::move(charts)},
                  {"sections", std::move(sections)}};
  return fmt::format("{}{}{}", kPageBegin, json_for_html(data), kPageEnd);
}

Json charts_of(const Chart& chart) {
  Json charts = Json::array();
  for (const Line& scalar : chart.scalars) {
    charts.push_back(chart_json("lines", scalar.label, {scalar}, Scale({scalar})));
  }
  for (const Panel& panel : chart.panels) {
    charts.push_back(chart_json("lines", panel.statistic + ": the worst tensors", panel.worst,
                                Scale(panel.worst)));
    charts.push_back(chart_json("map", panel.statistic + " of each layer's worst tensor",
                                panel.layers, Scale(panel.layers)));
  }
  return charts;
}

Json charts_of(const HistogramChart& chart) {
  Json charts = Json::array();
  for (const TensorHistogram& tensor : chart.tensors) {
    charts.push_back(chart_json(chart.one_iteration() ? "bars" : "map",
                                tensor.tensor + single_iteration(chart, tensor), tensor.rows,
                                Scale::of_percentages()));
    charts.back()["unit"] = " %";
  }
  return charts;
}

bool have_same_bins(const Chart& a, const Chart& b) {
  return a.bins == b.bins && a.first_iteration == b.first_iteration &&
         a.last_iteration == b.last_iteration;
}

}  // namespace

std::string draw_html(const Chart& chart) { return page(chart, charts_of(chart)); }

std::string draw_html(const HistogramChart& chart) { return page(chart.frame, charts_of(chart)); }

std::string draw_report(const Chart& chart, const HistogramChart* histograms, Json sections) {
  Json charts = charts_of(chart);
  if (histograms != nullptr && have_same_bins(chart, histograms->frame)) {
    for (Json& each : charts_of(*histograms)) charts.push_back(std::move(each));
  }
  return page(chart, std::move(charts), std::move(sections));
}

}  // namespace telens::cli
