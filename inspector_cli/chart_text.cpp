// Charts in characters: braille dots for lines, shades for a heat map.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "inspector_cli/chart.h"
#include "inspector_cli/terminal.h"

namespace telens::cli {
namespace {

constexpr int kLineRows = 8;
constexpr std::size_t kAxisWidth = 10;  // the numbers left of a line chart, and a space
constexpr std::size_t kLongestLabel = 48;
constexpr std::size_t kMostLayers = 40;
constexpr std::string_view kShades = ".:-=+*#%@";
constexpr char kNotFinite = '!';

// A character is 2 x 4 dots of braille.
class DotCanvas {
 public:
  DotCanvas(std::size_t columns, int rows)
      : columns_(columns), rows_(rows), cells_(columns * static_cast<std::size_t>(rows), 0) {}

  // x in characters / 2 from the left, y in dots from the top.
  void dot(std::size_t x, int y) {
    constexpr std::array<std::array<int, 4>, 2> kBits{{{0, 1, 2, 6}, {3, 4, 5, 7}}};
    if (x / 2 >= columns_ || y < 0 || y >= 4 * rows_) return;
    cells_[static_cast<std::size_t>(y / 4) * columns_ + x / 2] |= 1U << kBits[x % 2][y % 4];
  }
  std::string row(int row) const {
    std::string text;
    for (std::size_t column = 0; column < columns_; ++column) {
      const unsigned code = 0x2800 + cells_[static_cast<std::size_t>(row) * columns_ + column];
      text += {static_cast<char>(0xE0 | (code >> 12U)),
               static_cast<char>(0x80 | ((code >> 6U) & 0x3FU)),
               static_cast<char>(0x80 | (code & 0x3FU))};
    }
    return text;
  }
  int dots_high() const { return 4 * rows_; }

 private:
  std::size_t columns_;
  int rows_;
  std::vector<unsigned> cells_;
};

std::string draw_lines(const std::vector<Line>& lines, std::size_t columns) {
  const Scale scale(lines);
  DotCanvas canvas(columns, kLineRows);
  std::string bad(columns, ' ');
  for (const Line& line : lines) {
    for (std::size_t b = 0; b < line.bins.size(); ++b) {
      const Bin& bin = line.bins[b];
      if (!bin.seen()) continue;
      const std::size_t x = b * 2 * columns / line.bins.size();
      if (!bin.finite()) {
        bad[x / 2] = kNotFinite;
        continue;
      }
      const double height = scale.place(bin.value()) * (canvas.dots_high() - 1);
      canvas.dot(x, canvas.dots_high() - 1 - static_cast<int>(std::lround(height)));
    }
  }
  std::string text;
  if (bad.find(kNotFinite) != std::string::npos) {
    text += fmt::format("{:>{}} {}\n", "not finite", kAxisWidth, coloured(bad, Colour::red));
  }
  for (int row = 0; row < kLineRows; ++row) {
    const bool labelled = row == 0 || row == kLineRows - 1;
    const std::string label =
        labelled ? fmt::format("{:.4g}", scale.value_at(row == 0 ? 1 : 0)) : std::string();
    text += fmt::format("{:>{}} {}\n", label, kAxisWidth, canvas.row(row));
  }
  return text;
}

std::string axis(const Chart& chart, std::size_t left, std::size_t columns) {
  const std::string first = fmt::format("{}", chart.first_iteration);
  const std::string last = fmt::format("{}", chart.last_iteration);
  const std::size_t used = first.size() + last.size();
  const std::string gap(columns > used ? columns - used : 1, ' ');
  return fmt::format("{:>{}} {}{}{}\n", "iteration", left, first, gap, last);
}

std::string shade(const Bin& bin, const Scale& scale) {
  if (!bin.seen()) return " ";
  if (!bin.finite()) return coloured(std::string(1, kNotFinite), Colour::red);
  const auto level = static_cast<std::size_t>(
      std::lround(scale.place(bin.value()) * static_cast<double>(kShades.size() - 1)));
  return std::string(1, kShades[level]);
}

std::string draw_heat_map(const Chart& chart, const Panel& panel, std::size_t width) {
  const Scale scale(panel.layers);
  std::size_t label_width = std::string_view("iteration").size();
  const std::size_t shown = std::min(panel.layers.size(), kMostLayers);
  for (std::size_t i = 0; i < shown; ++i) {
    label_width = std::max(label_width, shortened(panel.layers[i].label, kLongestLabel).size());
  }
  const std::size_t columns =
      std::min(chart.bins, width > label_width + 20 ? width - label_width - 2 : std::size_t{20});
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    const Line& layer = panel.layers[i];
    std::vector<Bin> cells(columns);
    for (std::size_t b = 0; b < chart.bins; ++b) {
      if (layer.bins[b].seen()) cells[b * columns / chart.bins].add(layer.bins[b].value());
    }
    text += fmt::format("{:>{}} ", shortened(layer.label, kLongestLabel), label_width);
    for (const Bin& cell : cells) text += shade(cell, scale);
    text += "\n";
  }
  text += axis(chart, label_width, columns);
  if (shown < panel.layers.size()) {
    text += fmt::format("{} more layers; choose with --layer\n", panel.layers.size() - shown);
  }
  return text + fmt::format("{} = {:.4g}   {} = {:.4g}{}   {} = not finite\n", kShades.front(),
                            scale.value_at(0), kShades.back(), scale.value_at(1),
                            scale.logarithmic() ? " (logarithmic)" : "", kNotFinite);
}

}  // namespace

std::string draw_text(const Chart& chart, int width) {
  const auto total = static_cast<std::size_t>(std::max(width, 40));
  const std::size_t columns = std::min((chart.bins + 1) / 2, total - kAxisWidth - 2);
  std::string text;
  for (const std::string& headline : chart.headlines) text += headline + "\n";
  for (const Line& scalar : chart.scalars) {
    text += fmt::format("\n{}\n", coloured(scalar.label, Colour::bold));
    text += draw_lines({scalar}, columns) + axis(chart, kAxisWidth, columns);
  }
  for (const Panel& panel : chart.panels) {
    const Line& worst = panel.worst.front();
    text += fmt::format("\n{} of {}\n", coloured(panel.statistic, Colour::bold), worst.label);
    text += draw_lines({worst}, columns) + axis(chart, kAxisWidth, columns);
    text +=
        fmt::format("\n{} of each layer's worst tensor\n", coloured(panel.statistic, Colour::bold));
    text += draw_heat_map(chart, panel, total);
  }
  return text;
}

}  // namespace telens::cli
