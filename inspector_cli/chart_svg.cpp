#include "inspector_cli/chart_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "inspector_cli/scale.h"

namespace telens::cli {
namespace {

constexpr int kPlotWidth = kChartWidth - kLeft - kRight;
constexpr int kTitleHeight = 34;
constexpr int kAxisHeight = 34;
constexpr int kLineHeight = 150;
constexpr int kLegendStep = 16;
constexpr int kStrip = 6;         // where non-finite values are marked, above the lines
constexpr int kHeatHeight = 560;  // that a heat map fills, if its rows then have a fit height
constexpr int kTallestRow = 16;
constexpr int kFlattestRow = 3;
constexpr int kFlattestLabelledRow = 9;
constexpr double kHeatSteps = 24;  // as many as an eye tells apart; fewer make a smaller file
constexpr std::string_view kNotFiniteColour = "#d7191c";
constexpr std::string_view kUnseenColour = "#f0f0f0";
constexpr std::string_view kFaint = "fill=\"#666\"";

// ColorBrewer's sequential "Blues", light to dark: zero stays near the paper's white.
constexpr std::array<std::array<int, 3>, 5> kBlues{
    {{247, 251, 255}, {198, 219, 239}, {107, 174, 214}, {33, 113, 181}, {8, 48, 107}}};

std::string heat_colour(double place) {
  const double step = std::round(place * kHeatSteps) / kHeatSteps;
  const double position = step * static_cast<double>(kBlues.size() - 1);
  const auto lower = std::min(static_cast<std::size_t>(position), kBlues.size() - 2);
  const double part = position - static_cast<double>(lower);
  std::array<int, 3> mixed{};
  for (std::size_t c = 0; c < mixed.size(); ++c) {
    mixed[c] =
        static_cast<int>(std::lround(kBlues[lower][c] * (1 - part) + kBlues[lower + 1][c] * part));
  }
  return fmt::format("#{:02x}{:02x}{:02x}", mixed[0], mixed[1], mixed[2]);
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text,
                    std::string_view attributes = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y,
                     anchor, attributes, escaped(text));
}

double x_of(const Chart& chart, std::size_t bin) {
  return kLeft + static_cast<double>(bin) * kPlotWidth / static_cast<double>(chart.bins);
}

double bin_width(const Chart& chart) {
  return static_cast<double>(kPlotWidth) / static_cast<double>(chart.bins);
}

// Iterations below a plot, and the line at which things went wrong.
std::string axis(const Chart& chart, int top, int height) {
  std::string svg = text_at(kLeft - 6, top + height + 16, "end", "iteration", kFaint);
  for (const std::int64_t iteration : chart.iteration_ticks()) {
    const double x = x_of(chart, chart.bin_of(iteration)) + bin_width(chart) / 2;
    svg +=
        fmt::format("<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#888\"/>\n",
                    x, top + height, top + height + 4);
    svg += text_at(x, top + height + 16, "middle", fmt::format("{}", iteration));
  }
  const auto& bad = chart.trouble.nonfinite;
  if (bad && bad->iteration >= chart.first_iteration && bad->iteration <= chart.last_iteration) {
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"{3}\" "
        "stroke-dasharray=\"4 3\"><title>{4}</title></line>\n",
        x_of(chart, chart.bin_of(bad->iteration)), top - 4, top + height, kNotFiniteColour,
        escaped(chart.headlines.front()));
  }
  return svg;
}

std::string frame(int top, int height) {
  return fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#bbb\"/>\n", kLeft,
      top, kPlotWidth, height);
}

double y_of(int top, double place) { return top + kStrip + (1 - place) * (kLineHeight - kStrip); }

// One line: pieces between bins that were not seen or not finite, and marks for the latter.
std::string trace(const Chart& chart, const Line& line, const Scale& scale, int top,
                  std::string_view colour) {
  std::string svg;
  std::string points;
  const auto end_piece = [&] {
    if (!points.empty()) {
      svg += fmt::format(
          "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" "
          "stroke-linecap=\"round\"/>\n",
          points, colour);
    }
    points.clear();
  };
  const double width = bin_width(chart);
  for (std::size_t b = 0; b < line.bins.size(); ++b) {
    const Bin& bin = line.bins[b];
    if (!bin.seen()) continue;  // a gap in recording is bridged
    if (!bin.finite()) {
      end_piece();
      svg +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n",
                      x_of(chart, b), top, width + 0.2, kStrip, kNotFiniteColour);
      continue;
    }
    points += fmt::format("{:.1f},{:.1f} ", x_of(chart, b) + width / 2,
                          y_of(top, scale.place(bin.value())));
  }
  end_piece();
  return svg;
}

// The title, and what is unusual about the axis of the values.
std::string title_text(const std::string& title, const std::string& axis_note = "") {
  const std::string note =
      axis_note.empty()
          ? ""
          : fmt::format("<tspan dx=\"8\" font-size=\"11\" font-weight=\"normal\" {}>{}</tspan>",
                        kFaint, escaped(axis_note));
  return fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"14\" font-weight=\"bold\">{}{}</text>\n",
                     kLeft, kTitleHeight - 12, escaped(title), note);
}

// Neighbouring cells of one colour become one rectangle.
std::string heat_row(const Chart& chart, const Line& layer, const Scale& scale, int y, int height) {
  const auto colour_of = [&](const Bin& bin) -> std::string {
    if (!bin.seen()) return std::string(kUnseenColour);
    return bin.finite() ? heat_colour(scale.place(bin.value())) : std::string(kNotFiniteColour);
  };
  std::string svg = fmt::format("<g transform=\"translate(0 {})\">\n", y);
  for (std::size_t begin = 0; begin < layer.bins.size();) {
    const std::string colour = colour_of(layer.bins[begin]);
    std::size_t end = begin + 1;
    while (end < layer.bins.size() && colour_of(layer.bins[end]) == colour) ++end;
    const std::int64_t last = end < chart.bins ? chart.iteration_of(end) - 1 : chart.last_iteration;
    const std::string value = layer.bins[begin].seen()
                                  ? fmt::format("{:.3g}", layer.bins[begin].value())
                                  : std::string("not recorded");
    svg += fmt::format(
        "<rect x=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"><title>{} to {}: {}"
        "</title></rect>\n",
        x_of(chart, begin), x_of(chart, end) - x_of(chart, begin) + 0.2, height, colour,
        chart.iteration_of(begin), last, value);
    begin = end;
  }
  return svg + "</g>\n";
}

// At the right end of the title's line.
std::string heat_legend(const Scale& scale, int y) {
  constexpr int kSteps = 32;
  constexpr int kStepWidth = 4;
  constexpr int kBox = 10;
  constexpr double kLetter = 6.4;  // pixels, of the text's 11: rather too much
  int x = kLeft + kPlotWidth;
  std::string svg = text_at(x, y + 9, "end", "not finite");
  x -= 68;
  svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n", x - kBox,
                     y, kBox, kBox, kNotFiniteColour);
  std::string largest = fmt::format("{:.4g}", scale.value_at(1));
  if (!scale.short_note().empty()) largest += fmt::format(", {}", scale.short_note());
  x -= kBox + 16 + static_cast<int>(kLetter * static_cast<double>(largest.size()));
  svg += text_at(x, y + 9, "start", largest);
  x -= 6 + kSteps * kStepWidth;
  for (int step = 0; step < kSteps; ++step) {
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
                       x + step * kStepWidth, y, kStepWidth + 1, kBox,
                       heat_colour(static_cast<double>(step) / (kSteps - 1)));
  }
  return svg + text_at(x - 6, y + 9, "end", fmt::format("{:.4g}", scale.value_at(0)));
}

Drawing headline(const Chart& chart) {
  constexpr int kStep = 20;
  const bool fine = !chart.trouble.nonfinite && !chart.trouble.scalar && !chart.trouble.overflow;
  int y = 26;
  Drawing drawing{text_at(16, y, "start", chart.run_id, "font-size=\"18\" font-weight=\"bold\""),
                  0};
  for (const std::string& sentence : chart.headlines) {
    y += kStep;
    drawing.svg +=
        text_at(16, y, "start", sentence,
                fmt::format("font-size=\"13\" fill=\"{}\"", fine ? "#1a7f37" : kNotFiniteColour));
  }
  drawing.height = y + 16;
  return drawing;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string_view line_colour(std::size_t line) {
  // Okabe and Ito's palette, told apart with any colour vision; its red is left to non-finite.
  constexpr std::array<std::string_view, 6> kColours{"#0072b2", "#e69f00", "#009e73",
                                                     "#cc79a7", "#56b4e9", "#555555"};
  return kColours[line % kColours.size()];
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

Drawing heat_map(const Chart& chart, const Panel& panel) {
  const Scale scale(panel.layers);
  const int rows = static_cast<int>(panel.layers.size());
  const int row_height = std::clamp(kHeatHeight / std::max(rows, 1), kFlattestRow, kTallestRow);
  const int height = rows * row_height;
  const int top = kTitleHeight;
  const int label_every = (kFlattestLabelledRow + row_height - 1) / row_height;
  std::string svg = title_text(panel.statistic + " of each layer's worst tensor");
  svg += heat_legend(scale, kTitleHeight - 21);
  for (int row = 0; row < rows; ++row) {
    const Line& layer = panel.layers[row];
    const int y = top + row * row_height;
    svg += heat_row(chart, layer, scale, y, row_height);
    if (row % label_every == 0) {
      svg += text_at(kLeft - 6, y + row_height / 2.0 + 3.5, "end",
                     shortened(layer.label, kLongestLabel), "font-size=\"10\"");
    }
  }
  return {svg + frame(top, height) + axis(chart, top, height), top + height + kAxisHeight};
}

std::string svg_document(const std::vector<Drawing>& drawings) {
  std::string body;
  int height = 0;
  for (const Drawing& drawing : drawings) {
    body += fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", height, drawing.svg);
    height += drawing.height;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"11\" "
      "fill=\"#222\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n{2}</svg>\n",
      kChartWidth, height, body);
}

std::string draw_svg(const Chart& chart) {
  std::vector<Drawing> drawings{headline(chart)};
  for (const Line& scalar : chart.scalars) {
    drawings.push_back(line_chart(chart, scalar.label, {scalar}));
  }
  for (const Panel& panel : chart.panels) {
    drawings.push_back(line_chart(chart, panel.statistic + ": the worst tensors", panel.worst));
    drawings.push_back(heat_map(chart, panel));
  }
  return svg_document(drawings);
}

}  // namespace telens::cli
