#include "inspector_cli/report/svg_pieces.h"

#include <fmt/format.h>

#include "core/base/printable.h"

namespace telens::cli {

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

std::string_view colour_of(Gravity gravity) {
  switch (gravity) {
    case Gravity::grave:
      return kNotFiniteColour;
    case Gravity::notable:
      return "#b35900";
    case Gravity::fine:
      return "#1a7f37";
    case Gravity::plain:
      break;
  }
  return "#222";
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : printable(text)) {
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
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += c;
    }
  }
  return safe;
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text,
                    std::string_view attributes) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y,
                     anchor, attributes, escaped(text));
}

double x_of(const Chart& chart, std::size_t bin) {
  return kLeft + static_cast<double>(bin) * kPlotWidth / static_cast<double>(chart.bins);
}

double bin_width(const Chart& chart) {
  return static_cast<double>(kPlotWidth) / static_cast<double>(chart.bins);
}

std::string title_text(const std::string& title, const std::string& note) {
  const std::string beside =
      fmt::format("<tspan dx=\"8\" font-size=\"11\" font-weight=\"normal\" {}>{}</tspan>", kFaint,
                  escaped(note));
  return fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"14\" font-weight=\"bold\">{}{}</text>\n",
                     kLeft, kTitleHeight - 12, escaped(title), note.empty() ? "" : beside);
}

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
        escaped(chart.headlines.front().text));
  }
  return svg;
}

std::string frame(int top, int height) {
  return fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#bbb\"/>\n", kLeft,
      top, kPlotWidth, height);
}

}  // namespace telens::cli
