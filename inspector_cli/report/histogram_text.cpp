// Histograms in characters: shades over iterations, or bars for one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "inspector_cli/report/chart_text.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/report/scale.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

constexpr char kBar = '#';

std::string draw_bars(const std::vector<Line>& rows, std::size_t width) {
  const Scale scale = Scale::of_percentages();
  std::size_t label_width = 0;
  for (const Line& row : rows) label_width = std::max(label_width, row.label.size());
  constexpr std::size_t kNumberWidth = 10;
  const std::size_t longest = width - label_width - kNumberWidth - 2;
  std::string text;
  for (const Line& row : rows) {
    const double percent = row.bins.front().value();
    const double length = scale.place(percent) * static_cast<double>(longest);
    const auto characters = static_cast<std::size_t>(percent > 0 ? std::max(1.0, length) : 0);
    text += fmt::format("{:>{}} {:>{}.4g}{}{}\n", row.label, label_width, percent, kNumberWidth,
                        characters > 0 ? " " : "", std::string(characters, kBar));
  }
  return text;
}

}  // namespace

std::string draw_text(const HistogramChart& chart, int width) {
  const auto total = static_cast<std::size_t>(std::max(width, 40));
  std::string text = chart.frame.subtitle + "\n";
  for (const TensorHistogram& tensor : chart.tensors) {
    text += fmt::format("\n{}{}\n", colored(tensor.tensor, Color::bold),
                        single_iteration(chart, tensor));
    text += chart.one_iteration()
                ? draw_bars(tensor.rows, total)
                : text_heat_map(chart.frame, tensor.rows, Scale::of_percentages(), total);
  }
  return text;
}

}  // namespace telens::cli
