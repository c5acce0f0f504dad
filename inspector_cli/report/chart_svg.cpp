#include "inspector_cli/report/chart_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "inspector_cli/report/scale.h"
#include "inspector_cli/terminal/layer_labels.h"

namespace telens::cli {
namespace {

constexpr int kLineHeight = 150;
constexpr int kLegendStep = 16;
constexpr double kLeastMark = 3;
constexpr int kStrip = 6;  // where non-finite values are marked, above the lines

double y_of(int top, double place) { return top + kStrip + (1 - place) * (kLineHeight - kStrip); }

// In the strip above the lines: what is not finite, or is of warm-up.
std::string mark(const Chart& chart, std::size_t b, const Bin& bin, int top) {
  const std::string meaning =
      bin.finite() ? fmt::format("warm-up: {:.4g}", bin.value()) : std::string("not finite");
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{}"
      "</title></rect>\n",
      x_of(chart, b), top, std::max(bin_width(chart), kLeastMark) + 0.2, kStrip,
      bin.finite() ? kWarmUpColour : kNotFiniteColour, meaning);
}

// One line: pieces between bins that were not seen or not finite, and marks for the latter.
std::string trace(const Chart& chart, const Line& line, const Scale& scale, int top,
                  std::string_view colour) {
  std::string svg;
  std::string points;
  int in_piece = 0;
  const auto end_piece = [&] {
    if (in_piece == 1) {  // a line of one point is nothing to be seen
      const std::size_t comma = points.find(',');
      svg += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"3\" fill=\"{}\"/>\n",
                         points.substr(0, comma),
                         points.substr(comma + 1, points.size() - comma - 2), colour);
    } else if (!points.empty()) {
      svg += fmt::format(
          "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" "
          "stroke-linecap=\"round\"/>\n",
          points, colour);
    }
    points.clear();
    in_piece = 0;
  };
  const double width = bin_width(chart);
  for (std::size_t b = 0; b < line.bins.size(); ++b) {
    const Bin& bin = line.bins[b];
    if (!bin.seen()) continue;  // a gap in recording is bridged
    if (!bin.drawn()) {
      if (!bin.finite()) end_piece();
      svg += mark(chart, b, bin, top);
      continue;
    }
    ++in_piece;
    points += fmt::format("{:.1f},{:.1f} ", x_of(chart, b) + width / 2,
                          y_of(top, scale.place(bin.value())));
  }
  end_piece();
  return svg;
}

}  // namespace

std::string_view line_colour(std::size_t line) {
  // Okabe and Ito's palette, told apart with any colour vision; its red is left to non-finite.
  constexpr std::array<std::string_view, 6> kColours{"#0072b2", "#e69f00", "#009e73",
                                                     "#cc79a7", "#56b4e9", "#555555"};
  return kColours[line % kColours.size()];
}

Drawing headline(const Chart& chart) {
  constexpr int kStep = 20;
  int y = 26;
  Drawing drawing{text_at(16, y, "start", chart.run_id, "font-size=\"18\" font-weight=\"bold\""),
                  0};
  if (!chart.subtitle.empty()) {
    y += kStep;
    drawing.svg +=
        text_at(16, y, "start", chart.subtitle, fmt::format("font-size=\"12\" {}", kFaint));
  }
  for (const auto& [text, gravity] : chart.headlines) {
    y += kStep;
    drawing.svg += text_at(16, y, "start", text,
                           fmt::format("font-size=\"13\" fill=\"{}\"", colour_of(gravity)));
  }
  drawing.height = y + 16;
  return drawing;
}

Drawing line_chart(const Chart& chart, const std::string& title, const std::vector<Line>& lines) {
  const Scale scale(lines);
  const int top = kTitleHeight;
  std::string svg = title_text(title, scale.note()) + frame(top, kLineHeight);
  for (const auto& [place, label] : scale.ticks()) {
    const double y = y_of(top, place);
    svg += text_at(kLeft - 6, y + 4, "end", label);
    svg +=
        fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#e5e5e5\"/>\n",
                    kLeft, kLeft + kPlotWidth, y, y);
  }
  for (std::size_t i = lines.size(); i-- > 0;) {  // the worst on top
    svg += trace(chart, lines[i], scale, top, line_colour(i));
  }
  constexpr int kLegendRight = kLeft - 70;  // left of the numbers of the axis
  for (std::size_t i = 0; lines.size() > 1 && i < lines.size(); ++i) {
    const int y = top + 20 + static_cast<int>(i) * kLegendStep;
    svg += fmt::format(
        "<line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" stroke=\"{}\" "
        "stroke-width=\"3\"/>\n",
        kLegendRight + 4, kLegendRight + 16, y - 4, y - 4, line_colour(i));
    svg += text_at(kLegendRight, y, "end", shortened(lines[i].label, kLongestLabel),
                   "font-size=\"10\"");
  }
  return {svg + axis(chart, top, kLineHeight), top + kLineHeight + kAxisHeight};
}

std::string draw_svg(const Chart& chart) {
  std::vector<Drawing> drawings{headline(chart)};
  for (const Line& scalar : chart.scalars) {
    drawings.push_back(line_chart(chart, scalar.label, {scalar}));
  }
  for (const Panel& panel : chart.panels) {
    drawings.push_back(line_chart(chart, panel.statistic + ": the worst tensors", panel.worst));
    drawings.push_back(heat_map(chart, panel.statistic + " of each layer's worst tensor",
                                panel.layers, Scale(panel.layers)));
  }
  return svg_document(drawings);
}

}  // namespace telens::cli
