// A page that opens offline: Chart.js, if the build found it, draws the lines; SVG does the rest.
#include <fmt/format.h>

#include "inspector_cli/report/chart_js.h"
#include "inspector_cli/report/chart_svg.h"
#include "inspector_cli/report/histogram_svg.h"
#include "inspector_cli/report/scale.h"
#include "inspector_cli/terminal/layer_labels.h"
#include "inspector_cli/terminal/table.h"

namespace telens::cli {
namespace {

constexpr std::string_view kStyle = R"(
  body { font: 14px/1.4 system-ui, 'DejaVu Sans', sans-serif; color: #222; margin: 24px auto;
         max-width: 1100px; padding: 0 12px; }
  h1 { font-size: 20px; margin: 0 0 8px; }
  h2 { font-size: 16px; margin: 32px 0 8px; border-top: 1px solid #ddd; padding-top: 16px; }
  .headline { margin: 2px 0; }
  h2 small { font-weight: normal; font-size: 12px; color: #666; margin-left: 8px; }
  .lines { height: 260px; position: relative; }
  .lines ul { position: absolute; left: 0; top: 12px; width: 24%; margin: 0; padding: 0;
              list-style: none; font-size: 10.5px; }
  .lines li { cursor: pointer; margin: 4px 0; overflow-wrap: anywhere; padding-left: 18px; }
  .lines li i { display: inline-block; width: 12px; height: 3px; margin: 0 6px 3px -18px; }
  .lines li.hidden { opacity: 0.35; text-decoration: line-through; }
  svg { max-width: 100%; height: auto; display: block; }
)";

// Heights are computed here, so that a page has the axes of the SVG. null: nothing recorded there
// (freq: 10), which a line bridges, or a value that is not finite, which is drawn as a mark on a
// dataset of its own. The plot stands above the heat map, iteration above iteration.
constexpr std::string_view kScript = R"(
const notFinite = '#d7191c', warmUp = '#b0b0b0';
function drawLines(id, lines, ticks) {
  const datasets = lines.map(line => ({
    label: line.label, data: line.places, shown: line.values, borderColor: line.colour,
    backgroundColor: line.colour, borderWidth: 1.5, spanGaps: true, clip: 4,
    pointRadius: line.places.filter(v => v !== null).length === 1 ? 3 : 0}));
  const mark = (label, colour, has) => {
    const data = iterations.map((_, i) => lines.some(line => has(line).includes(i)) ? 1 : null);
    if (data.some(v => v !== null)) datasets.push({
      label, data, shown: [], showLine: false, pointRadius: 3, pointStyle: 'rect',
      borderColor: colour, backgroundColor: colour, clip: 4});
  };
  mark('not finite', notFinite, line => line.bad);
  mark('warm-up', warmUp, line => line.warmUp);
  const chart = new Chart(document.getElementById(id), {
    type: 'line', data: {labels: iterations, datasets},
    options: {animation: false, maintainAspectRatio: false,
      layout: {padding: context => ({right: context.chart.width * right, top: 6})},
      interaction: {mode: 'nearest', axis: 'x', intersect: false},
      plugins: {legend: {display: false}, tooltip: {callbacks: {
        title: items => 'iteration ' + items[0].label,
        label: item => item.dataset.label + ' ' + (item.dataset.shown[item.dataIndex] ?? '')}}},
      scales: {
        x: {offset: true, grid: {offset: false}, ticks: {maxRotation: 0, autoSkip: false},
            afterBuildTicks: axis => { axis.ticks = iterationTicks.map(value => ({value})); }},
        y: {min: 0, max: 1, afterFit: axis => { axis.width = axis.chart.width * left; },
            afterBuildTicks: axis => { axis.ticks = ticks.map(tick => ({value: tick[0]})); },
            ticks: {autoSkip: false, callback: (_, i) => ticks[i][1]}}}}});
  document.querySelectorAll('#' + id + '-legend li').forEach((item, i) => item.onclick = () => {
    chart.setDatasetVisibility(i, item.classList.toggle('hidden') === false);
    chart.update();
  });
}
)";

std::string json_line(const Line& line, std::size_t index, const Scale& scale) {
  std::string values;
  std::string places;
  std::string bad;
  std::string warm_up;
  for (std::size_t b = 0; b < line.bins.size(); ++b) {
    const Bin& bin = line.bins[b];
    const std::string_view comma = b > 0 ? "," : "";
    if (bin.drawn()) {
      places += fmt::format("{}{:.4f}", comma, scale.place(bin.value()));
      values += fmt::format("{}{:.6g}", comma, bin.value());
    } else {
      places += fmt::format("{}null", comma);
      values += fmt::format("{}null", comma);
    }
    if (!bin.seen() || bin.drawn()) continue;
    std::string& marks = bin.finite() ? warm_up : bad;
    marks += fmt::format("{}{}", marks.empty() ? "" : ",", b);
  }
  return fmt::format(
      "{{label: {}, colour: '{}', places: [{}], values: [{}], bad: [{}], warmUp: [{}]}}",
      json_text(line.label), line_colour(index), places, values, bad, warm_up);
}

// A click on an entry hides its line.
std::string legend(const std::vector<Line>& lines, const std::string& id) {
  std::string items;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    items += fmt::format("<li title=\"{}\"><i style=\"background: {}\"></i>{}</li>\n",
                         escaped(lines[i].label), line_colour(i),
                         escaped(shortened(lines[i].label, kLongestLabel)));
  }
  return fmt::format("<ul id=\"{}-legend\">\n{}</ul>\n", id, items);
}

class Page {
 public:
  explicit Page(const Chart& chart) : chart_(chart) {}

  void lines(const std::string& title, const std::vector<Line>& lines) {
    if (kChartJs.empty()) {
      body_ += svg_document({line_chart(chart_, title, lines)});
      return;
    }
    const Scale scale(lines);
    const std::string id = fmt::format("lines{}", charts_++);
    std::string datasets;
    for (std::size_t i = 0; i < lines.size(); ++i)
      datasets += json_line(lines[i], i, scale) + ",\n";
    std::string ticks;
    for (const auto& [place, label] : scale.ticks()) {
      ticks += fmt::format("[{:.4f}, '{}'],", place, label);
    }
    body_ += fmt::format("<div class=\"lines\">{}<canvas id=\"{}\"></canvas></div>\n",
                         lines.size() > 1 ? legend(lines, id) : "", id);
    calls_ += fmt::format("drawLines('{}', [{}], [{}]);\n", id, datasets, ticks);
  }
  // With what is unusual about the axis of these lines.
  void heading(const std::string& text, const std::vector<Line>& lines) {
    const std::string note = Scale(lines).note();
    body_ += fmt::format("<h2>{} <small>{}</small></h2>\n", escaped(text), escaped(note));
  }
  void drawing(const Drawing& drawing) { body_ += svg_document({drawing}); }

  std::string html() const {
    std::string page = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
    page += fmt::format("<title>{} - TELens</title>\n<style>{}</style></head><body>\n",
                        escaped(chart_.run_id), kStyle);
    page += "<h1>" + escaped(chart_.run_id) + "</h1>\n";
    if (!chart_.subtitle.empty()) page += "<p>" + escaped(chart_.subtitle) + "</p>\n";
    for (const auto& [text, gravity] : chart_.headlines) {
      page += fmt::format("<p class=\"headline\" style=\"color: {}\">{}</p>\n", colour_of(gravity),
                          escaped(text));
    }
    page += body_;
    if (!calls_.empty()) page += "<script>" + std::string(kChartJs) + "</script>\n" + script();
    return page + "</body></html>\n";
  }

 private:
  std::string script() const {
    std::string iterations;
    for (std::size_t b = 0; b < chart_.bins; ++b) {
      iterations += fmt::format("{}{}", b > 0 ? "," : "", chart_.iteration_of(b));
    }
    std::string ticks;
    for (const std::int64_t iteration : chart_.iteration_ticks()) {
      ticks += fmt::format("{},", chart_.bin_of(iteration));
    }
    return fmt::format(
        "<script>{}const iterations = [{}];\nconst iterationTicks = [{}];\n"
        "const left = {:.5f}, right = {:.5f};\n{}</script>\n",
        kScript, iterations, ticks, double{kLeft} / kChartWidth, double{kRight} / kChartWidth,
        calls_);
  }

  const Chart& chart_;
  std::string body_;
  std::string calls_;
  int charts_ = 0;
};

}  // namespace

std::string draw_html(const Chart& chart) {
  Page page(chart);
  for (const Line& scalar : chart.scalars) {
    page.heading(scalar.label, {scalar});
    page.lines(scalar.label, {scalar});
  }
  for (const Panel& panel : chart.panels) {
    page.heading(panel.statistic + ": the worst tensors", panel.worst);
    page.lines(panel.statistic, panel.worst);
    page.drawing(heat_map(chart, panel.statistic + " of each layer's worst tensor", panel.layers,
                          Scale(panel.layers)));
  }
  return page.html();
}

std::string draw_html(const HistogramChart& chart) {
  Page page(chart.frame);
  for (const TensorHistogram& tensor : chart.tensors) {
    page.drawing(histogram_drawing(chart, tensor));
  }
  return page.html();
}

}  // namespace telens::cli
