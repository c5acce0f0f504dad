// Histograms as SVG: a heat map over iterations, or bars for one.
#include <fmt/format.h>

#include "inspector_cli/report/chart_svg.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/histogram_svg.h"
#include "inspector_cli/report/scale.h"

namespace telens::cli {
namespace {

constexpr int kRow = 14;
constexpr int kNumberWidth = 70;

Drawing bars(const std::string& title, const std::string& note, const std::vector<Line>& rows) {
  const Scale scale = Scale::of_percentages();
  const int height = static_cast<int>(rows.size()) * kRow;
  std::string svg = title_text(title, note) + frame(kTitleHeight, height);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double percent = rows[i].bins.front().value();
    const int y = kTitleHeight + static_cast<int>(i) * kRow;
    const double length = percent > 0 ? 1 + scale.place(percent) * (kPlotWidth - kNumberWidth) : 0;
    svg += text_at(kLeft - 6, y + 11, "end", rows[i].label, "font-size=\"10\"");
    svg += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{}: {:.6g} %"
        "</title></rect>\n",
        kLeft, y + 1, length, kRow - 2, line_colour(0), rows[i].label, percent);
    if (percent > 0) {
      svg += text_at(kLeft + length + 6, y + 11, "start", fmt::format("{:.3g}", percent),
                     fmt::format("font-size=\"10\" {}", kFaint));
    }
  }
  return {svg, kTitleHeight + height + kAxisHeight / 2};
}

}  // namespace

Drawing histogram_drawing(const HistogramChart& chart, const TensorHistogram& tensor) {
  if (chart.one_iteration()) {
    return bars(tensor.tensor, single_iteration(chart, tensor).substr(2), tensor.rows);
  }
  return heat_map(chart.frame, tensor.tensor, tensor.rows, Scale::of_percentages());
}

std::string draw_svg(const HistogramChart& chart) {
  std::vector<Drawing> drawings{headline(chart.frame)};
  for (const TensorHistogram& tensor : chart.tensors) {
    drawings.push_back(histogram_drawing(chart, tensor));
  }
  return svg_document(drawings);
}

}  // namespace telens::cli
