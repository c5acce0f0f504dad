// A heat map: rows by iterations.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "inspector_cli/report/chart_svg.h"
#include "inspector_cli/terminal/layer_labels.h"

namespace telens::cli {
namespace {

constexpr int kHeatHeight = 560;  // that a heat map fills, if its rows then have a fit height
constexpr int kTallestRow = 16;
constexpr int kFlattestRow = 3;
constexpr int kFlattestLabelledRow = 9;
constexpr double kHeatSteps = 24;  // as many as an eye tells apart; fewer make a smaller file
constexpr std::string_view kUnseenColour = "#f0f0f0";

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

// Neighbouring cells of one colour become one rectangle.
std::string heat_row(const Chart& chart, const Line& layer, const Scale& scale, int y, int height) {
  const auto colour_of = [&](const Bin& bin) -> std::string {
    if (!bin.seen()) return std::string(kUnseenColour);
    if (!bin.finite()) return std::string(kNotFiniteColour);
    return bin.warm_up() ? std::string(kWarmUpColour) : heat_colour(scale.place(bin.value()));
  };
  std::string svg = fmt::format("<g transform=\"translate(0 {})\">\n", y);
  for (std::size_t begin = 0; begin < layer.bins.size();) {
    const std::string colour = colour_of(layer.bins[begin]);
    std::size_t end = begin + 1;
    while (end < layer.bins.size() && colour_of(layer.bins[end]) == colour) ++end;
    const std::int64_t last = end < chart.bins ? chart.iteration_of(end) - 1 : chart.last_iteration;
    const std::string value = layer.bins[begin].seen()
                                  ? fmt::format("{:.3g}{}", layer.bins[begin].value(),
                                                layer.bins[begin].warm_up() ? ", warm-up" : "")
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
std::string heat_legend(const Scale& scale, bool has_warm_up, int y) {
  constexpr int kSteps = 32;
  constexpr int kStepWidth = 4;
  constexpr int kBox = 10;
  constexpr double kLetter = 6.4;  // pixels, of the text's 11: rather too much
  int x = kLeft + kPlotWidth;
  std::string svg;
  const auto box = [&](std::string_view name, int width, std::string_view colour) {
    svg += text_at(x, y + 9, "end", name);
    x -= width;
    svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
                       x - kBox, y, kBox, kBox, colour);
  };
  if (has_warm_up) {
    box("warm-up", 56, kWarmUpColour);
    x -= kBox + 12;
  }
  box("not finite", 68, kNotFiniteColour);
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

// A long one begins further left.
std::string title_beside_legend(const std::string& title, bool has_warm_up) {
  constexpr double kLetter = 9.8;  // pixels, of bold text of 14
  const int legend_width = has_warm_up ? 390 : 310;
  const double width = kLetter * static_cast<double>(title.size());
  const double x =
      std::max(16.0, std::min<double>(kLeft, kLeft + kPlotWidth - legend_width - width));
  return text_at(x, kTitleHeight - 12, "start", title, "font-size=\"14\" font-weight=\"bold\"");
}

}  // namespace

Drawing heat_map(const Chart& chart, const std::string& title, const std::vector<Line>& lines,
                 const Scale& scale) {
  const int rows = static_cast<int>(lines.size());
  const int row_height = std::clamp(kHeatHeight / std::max(rows, 1), kFlattestRow, kTallestRow);
  const int height = rows * row_height;
  const int top = kTitleHeight;
  const int label_every = (kFlattestLabelledRow + row_height - 1) / row_height;
  const bool has_warm_up = std::ranges::any_of(lines, [](const Line& line) {
    return std::ranges::any_of(line.bins, [](const Bin& bin) { return bin.warm_up(); });
  });
  std::string svg = title_beside_legend(title, has_warm_up);
  svg += heat_legend(scale, has_warm_up, kTitleHeight - 21);
  for (int row = 0; row < rows; ++row) {
    const Line& layer = lines[row];
    const int y = top + row * row_height;
    svg += heat_row(chart, layer, scale, y, row_height);
    if (row % label_every == 0) {
      svg += text_at(kLeft - 6, y + row_height / 2.0 + 3.5, "end",
                     shortened(layer.label, kLongestLabel), "font-size=\"10\"");
    }
  }
  return {svg + frame(top, height) + axis(chart, top, height), top + height + kAxisHeight};
}

}  // namespace telens::cli
