// A page that opens offline: Chart.js, if the build found it, draws the lines; SVG does the rest.
#include <fmt/format.h>

#include "inspector_cli/chart_js.h"
#include "inspector_cli/chart_svg.h"
#include "inspector_cli/table.h"

namespace telens::cli {
namespace {

constexpr std::string_view kStyle = R"(
  body { font: 14px/1.4 system-ui, 'DejaVu Sans', sans-serif; color: #222; margin: 24px auto;
         max-width: 1100px; padding: 0 12px; }
  h1 { font-size: 20px; margin: 0 0 8px; }
  h2 { font-size: 16px; margin: 32px 0 8px; border-top: 1px solid #ddd; padding-top: 16px; }
  .bad { color: #d7191c; margin: 2px 0; } .fine { color: #1a7f37; margin: 2px 0; }
  .lines { height: 300px; position: relative; }
  svg { max-width: 100%; height: auto; display: block; }
)";

// null: nothing recorded there (freq: 10), which a line bridges, or a value that is not finite,
// which is drawn as a mark on a dataset of its own.
constexpr std::string_view kScript = R"(
const notFinite = '#d7191c';
function drawLines(id, iterations, lines, logarithmic) {
  const datasets = lines.map(line => ({
    label: line.label, data: line.values, borderColor: line.colour, backgroundColor: line.colour,
    borderWidth: 1.5, pointRadius: 0, spanGaps: true}));
  const top = Math.max(...lines.flatMap(line => line.values.filter(v => v !== null)));
  const bad = iterations.map((_, i) => lines.some(line => line.bad.includes(i)) ? top : null);
  if (bad.some(v => v !== null)) datasets.push({
    label: 'not finite', data: bad, showLine: false, pointRadius: 3, pointStyle: 'rect',
    borderColor: notFinite, backgroundColor: notFinite});
  new Chart(document.getElementById(id), {
    type: 'line', data: {labels: iterations, datasets},
    options: {animation: false, maintainAspectRatio: false,
      interaction: {mode: 'nearest', axis: 'x', intersect: false},
      plugins: {legend: {position: 'bottom', labels: {boxWidth: 12}}},
      scales: {x: {title: {display: true, text: 'iteration'}, ticks: {maxTicksLimit: 12, maxRotation: 0}},
               y: {type: logarithmic ? 'logarithmic' : 'linear'}}}});
}
)";

std::string json_line(const Line& line, std::size_t index) {
  std::string values;
  std::string bad;
  for (std::size_t b = 0; b < line.bins.size(); ++b) {
    const Bin& bin = line.bins[b];
    const bool finite = bin.seen() && bin.finite();
    if (b > 0) values += ',';
    values += finite ? json_number(bin.value()) : std::string("null");
    if (bin.seen() && !bin.finite()) bad += fmt::format("{}{}", bad.empty() ? "" : ",", b);
  }
  return fmt::format("{{label: {}, colour: '{}', values: [{}], bad: [{}]}}", json_text(line.label),
                     line_colour(index), values, bad);
}

class Page {
 public:
  explicit Page(const Chart& chart) : chart_(chart) {}

  void lines(const std::string& title, const std::vector<Line>& lines) {
    if (kChartJs.empty()) {
      body_ += svg_document({line_chart(chart_, title, lines)});
      return;
    }
    const std::string id = fmt::format("lines{}", charts_++);
    std::string datasets;
    for (std::size_t i = 0; i < lines.size(); ++i) datasets += json_line(lines[i], i) + ",\n";
    body_ += fmt::format("<div class=\"lines\"><canvas id=\"{}\"></canvas></div>\n", id);
    calls_ += fmt::format("drawLines('{}', iterations, [{}], {});\n", id, datasets,
                          Scale(lines).logarithmic());
  }
  void heading(const std::string& text) { body_ += "<h2>" + escaped(text) + "</h2>\n"; }
  void drawing(const Drawing& drawing) { body_ += svg_document({drawing}); }

  std::string html() const {
    std::string page = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
    page += fmt::format("<title>{} - TELens</title>\n<style>{}</style></head><body>\n",
                        escaped(chart_.run_id), kStyle);
    page += "<h1>" + escaped(chart_.run_id) + "</h1>\n";
    const auto& trouble = chart_.trouble;
    const bool fine = !trouble.nonfinite && !trouble.scalar && !trouble.overflow;
    for (const std::string& sentence : chart_.headlines) {
      page += fmt::format("<p class=\"{}\">{}</p>\n", fine ? "fine" : "bad", escaped(sentence));
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
    return fmt::format("<script>{}const iterations = [{}];\n{}</script>\n", kScript, iterations,
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
    page.heading(scalar.label);
    page.lines(scalar.label, {scalar});
  }
  for (const Panel& panel : chart.panels) {
    page.heading(panel.statistic + ": the worst tensors");
    page.lines(panel.statistic, panel.worst);
    page.drawing(heat_map(chart, panel));
  }
  return page.html();
}

}  // namespace telens::cli
