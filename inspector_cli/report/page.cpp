// The data of a page: charts as JSON, which page.html draws.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/internal_error.h"
#include "core/base/json.h"
#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/content_policy.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/page_template.h"
#include "inspector_cli/report/report_page.h"
#include "inspector_cli/report/scale.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

// Places of Scale, 0 to 1, become whole numbers: short texts, and finer than any pixel.
constexpr double kHighestPlace = 10000;

std::int64_t page_place(double place) { return std::lround(place * kHighestPlace); }

// As many digits as a person reads; of a heat map's cells, which are many, fewer.
constexpr int kDigits = 6;
constexpr int kDigitsOfCell = 4;

Json rounded(double value, int digits) {
  if (!std::isfinite(value)) return json_number(value);
  const std::string text = fmt::format("{:.{}g}", value, digits);
  double shorter = 0;
  std::from_chars(text.data(), text.data() + text.size(), shorter);
  return shorter;
}

// null: nothing was recorded there. A value that has no place is not finite, or of warm-up.
Json row_json(const Line& line, const Scale& scale, int digits) {
  Json values = Json::array();
  Json places = Json::array();
  for (const Bin& bin : line.bins) {
    values.push_back(bin.seen() ? rounded(bin.value(), digits) : Json());
    places.push_back(bin.drawn() ? Json(page_place(scale.place(bin.value()))) : Json());
  }
  return {{"label", json_text(line.label)},
          {"label46", json_text(shortened(line.label, 46))},
          {"label20", json_text(shortened(line.label, 20))},
          {"values", std::move(values)},
          {"places", std::move(places)}};
}

Json ticks_json(const Scale& scale) {
  Json ticks = Json::array();
  for (const auto& [place, label] : scale.ticks()) ticks.push_back({page_place(place), label});
  return ticks;
}

Json chart_json(std::string_view kind, const std::string& title, const std::vector<Line>& lines,
                const Scale& scale) {
  Json rows = Json::array();
  for (const Line& line : lines) {
    rows.push_back(row_json(line, scale, kind == "map" ? kDigitsOfCell : kDigits));
  }
  std::string highest = fmt::format("{:.4g}", scale.value_at(1));
  if (!scale.short_note().empty()) highest += ", " + scale.short_note();
  std::string note = scale.note();
  if (kind == "map") {
    if (!note.empty()) note += "; ";
    note += scale.is_absolute() ? "the same colors in every run" : "colors span this run's values";
  }
  return {{"kind", kind},
          {"title", json_text(title)},
          {"note", std::move(note)},
          {"unit", ""},
          {"ticks", ticks_json(scale)},
          {"lowest", fmt::format("{:.4g}", scale.value_at(0))},
          {"highest", std::move(highest)},
          {"rows", std::move(rows)}};
}

std::string_view get_name(Gravity gravity) {
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
    headlines.push_back({{"text", json_text(text)}, {"gravity", get_name(gravity)}});
  }
  return headlines;
}

Json trouble_json(const Chart& chart) {
  const auto& bad = chart.trouble.nonfinite;
  const bool shown =
      bad && bad->iteration >= chart.first_iteration && bad->iteration <= chart.last_iteration;
  return shown ? Json{{"bin", chart.get_bin(bad->iteration)}} : Json();
}

Json page_data(const Chart& chart, Json charts) {
  Json iterations = Json::array();
  for (std::size_t b = 0; b < chart.bins; ++b) iterations.push_back(chart.get_iteration(b));
  Json ticks = Json::array();
  for (const std::int64_t iteration : chart.iteration_ticks()) {
    ticks.push_back({chart.get_bin(iteration), iteration});
  }
  return {{"run", json_text(chart.run_id)},        {"title", json_text(chart.title())},
          {"subtitle", json_text(chart.subtitle)}, {"headlines", headlines_json(chart)},
          {"iterations", std::move(iterations)},   {"lastIteration", chart.last_iteration},
          {"iterationTicks", std::move(ticks)},    {"trouble", trouble_json(chart)},
          {"charts", std::move(charts)},           {"sections", Json::array()}};
}

// Beside each row, the tensors that it is made of, on an axis of their own.
void add_tensors(Json& map, const Panel& panel) {
  std::vector<Line> all;
  for (const auto& tensors : panel.tensors) all.insert(all.end(), tensors.begin(), tensors.end());
  if (all.empty()) return;
  const Scale scale(all);
  map["tensorTicks"] = ticks_json(scale);
  for (std::size_t i = 0; i < panel.tensors.size(); ++i) {
    Json& tensors = map["rows"][i]["tensors"] = Json::array();
    for (const Line& each : panel.tensors[i]) {
      tensors.push_back(row_json(each, scale, kDigitsOfCell));
    }
  }
}

std::string layers_shown(const Panel& panel) {
  if (panel.layers_left_out == 0) return "";
  return fmt::format(", the {} worst of {} layers", panel.layers.size(),
                     panel.layers.size() + panel.layers_left_out);
}

Json rank_axis(const RankMaps& ranks) {
  constexpr std::size_t kTicks = 8;
  Json ticks = Json::array();
  const std::size_t step = (ranks.ranks.size() + kTicks - 1) / kTicks;
  for (std::size_t b = 0; b < ranks.ranks.size(); b += step) ticks.push_back({b, ranks.ranks[b]});
  return {{"name", "rank"}, {"firsts", ranks.ranks}, {"last", ranks.last_rank}, {"ticks", ticks}};
}

// That of the statistic's panel, where any of its layers has values of single ranks.
void add_rank_map(Json& charts, const RankMaps& ranks, const std::string& statistic) {
  const auto map = std::ranges::find(ranks.maps, statistic, &RankMap::statistic);
  if (map == ranks.maps.end()) return;
  charts.push_back(chart_json("map", statistic + " of layers by ranks, the worst of all iterations",
                              map->layers, Scale::of_map(statistic, map->layers)));
  charts.back()["axis"] = rank_axis(ranks);
}

Json make_charts(const Chart& chart, const RankMaps& ranks = {}) {
  Json charts = Json::array();
  for (const Line& scalar : chart.scalars) {
    charts.push_back(chart_json("lines", scalar.label, {scalar}, Scale({scalar})));
  }
  for (const Panel& panel : chart.panels) {
    charts.push_back(chart_json("lines", panel.statistic + ": the worst tensors", panel.worst,
                                Scale(panel.worst)));
    charts.push_back(
        chart_json("map", panel.statistic + " of each layer's worst tensor" + layers_shown(panel),
                   panel.layers, Scale::of_map(panel.statistic, panel.layers)));
    add_tensors(charts.back(), panel);
    add_rank_map(charts, ranks, panel.statistic);
  }
  return charts;
}

Json make_charts(const HistogramChart& chart) {
  Json charts = Json::array();
  for (const TensorHistogram& tensor : chart.tensors) {
    charts.push_back(chart_json(chart.one_iteration() ? "bars" : "map",
                                tensor.tensor + single_iteration(chart, tensor), tensor.rows,
                                Scale::of_percentages()));
    charts.back()["unit"] = " %";
  }
  return charts;
}

}  // namespace

std::string json_for_html(const Json& json) {
  std::string text = json_line(json);
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    text.replace(at, 1, "\\u003c");  // prevents "</script>" and "<!--"; '<' occurs only in strings
  }
  return text;
}

std::string draw_html(const Chart& chart) {
  return make_page(json_for_html(page_data(chart, make_charts(chart))));
}

std::string draw_html(const HistogramChart& chart) {
  return make_page(json_for_html(page_data(chart.frame, make_charts(chart))));
}

Json report_data(const Chart& chart, const RankMaps& ranks, const HistogramChart* histograms) {
  Json charts = make_charts(chart, ranks);
  if (histograms != nullptr) {
    for (Json& each : make_charts(*histograms)) charts.push_back(std::move(each));
  }
  return page_data(chart, std::move(charts));
}

namespace {

// The page with its policy in the place of one that allows nothing.
std::string with_policy(std::string_view data, const std::string& policy) {
  constexpr std::string_view kAllowsNothing = "default-src 'none'";
  std::string begin(kPageBegin);
  const std::size_t at = begin.find(kAllowsNothing);
  if (at == std::string::npos) raise<InternalError>("the page has no policy of what it may load");
  begin.replace(at, kAllowsNothing.size(), policy);
  return fmt::format("{}{}{}", begin, data, kPageEnd);
}

}  // namespace

std::string make_page(std::string_view data) {
  // A page that is a file asks no address for anything.
  static const std::string policy = page_policy(kPageEnd, false);
  return with_policy(data, policy);
}

const std::string& live_page_policy() {
  static const std::string policy = page_policy(kPageEnd, true);
  return policy;
}

std::string make_live_page(std::string_view data) { return with_policy(data, live_page_policy()); }

}  // namespace telens::cli
