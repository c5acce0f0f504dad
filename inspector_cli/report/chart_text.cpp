// Charts as text: braille dots for lines, shades for heat maps, # for bars.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "core/base/text.h"
#include "inspector_cli/report/axis.h"
#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/histogram_chart.h"
#include "inspector_cli/terminal/terminal.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

constexpr int kLineRows = 8;
constexpr std::size_t kAxisWidth = 10;  // the labels of a line chart and a space
constexpr std::size_t kLongestLabel = 48;
constexpr std::size_t kMostLayers = 40;
constexpr std::string_view kShades = ".:-=+*#%@";
constexpr char kNotFinite = '!';
constexpr char kWarmUp = 'w';

struct Dot {
  int x = 0;
  int y = 0;
};

// A canvas of braille characters, 2 x 4 dots each.
class DotCanvas {
 public:
  DotCanvas(std::size_t columns, int rows)
      : columns_(columns), rows_(rows), cells_(columns * static_cast<std::size_t>(rows), 0) {}

  // Sets a dot: x from the left, y from the top.
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
  // Draws a connected line.
  void line(const Dot& from, const Dot& to) {
    const int steps = std::max({std::abs(to.x - from.x), std::abs(to.y - from.y), 1});
    for (int step = 0; step <= steps; ++step) {
      const double part = static_cast<double>(step) / steps;
      dot(static_cast<std::size_t>(std::lround(from.x + part * (to.x - from.x))),
          static_cast<int>(std::lround(from.y + part * (to.y - from.y))));
    }
  }
  int dots_high() const { return 4 * rows_; }

 private:
  std::size_t columns_;
  int rows_;
  std::vector<unsigned> cells_;
};

std::string row_label(int row, const Axis& axis) {
  if (row == 0) return fmt::format("{:.4g}", axis.value_at(1));
  if (row == kLineRows - 1) return fmt::format("{:.4g}", axis.value_at(0));
  if (row != kLineRows / 2) return "";
  constexpr double kMiddleOfRow = 1 - (kLineRows / 2 * 4 + 1.5) / (4 * kLineRows - 1);
  return fmt::format("{:.3g}", axis.value_at(kMiddleOfRow));
}

// Returns a row of marks above a line chart, or "" without marks.
std::string marks_row(std::string_view name, const std::string& marks, Color color) {
  if (marks.find_first_not_of(' ') == std::string::npos) return "";
  return fmt::format("{:>{}} {}\n", name, kAxisWidth, colored(marks, color));
}

bool is_single_value(const Line& line) {
  return std::ranges::count_if(line.bins, [](const Bin& bin) { return bin.drawn(); }) == 1;
}

// Draws a line chart. Non-finite values interrupt the line and are marked above, as is warm-up. A
// single value is drawn as wide as its iterations.
std::string draw_line(const Line& line, const Axis& axis, std::size_t columns) {
  DotCanvas canvas(columns, kLineRows);
  const int bottom = canvas.dots_high() - 1;
  std::string bad(columns, ' ');
  std::string warm_up(columns, ' ');
  const bool single = is_single_value(line);
  bool connected = false;
  Dot before;
  for (std::size_t b = 0; b < line.bins.size(); ++b) {
    const Bin& bin = line.bins[b];
    if (!bin.seen()) continue;
    const std::size_t x = (2 * b + 1) * columns / line.bins.size();
    if (!bin.drawn()) {
      (bin.finite() ? warm_up : bad)[x / 2] = bin.finite() ? kWarmUp : kNotFinite;
      connected = connected && bin.finite();
      continue;
    }
    const double height = axis.place(bin.value()) * bottom;
    const Dot at{static_cast<int>(x), bottom - static_cast<int>(std::lround(height))};
    if (single) {
      const int half = static_cast<int>(columns / line.bins.size());
      canvas.line({at.x - half, at.y}, {at.x + half - 1, at.y});
    }
    canvas.line(connected ? before : at, at);
    connected = true;
    before = at;
  }
  std::string text = marks_row("not finite", bad, Color::red);
  text += marks_row("warm-up", warm_up, Color::dim);
  for (int row = 0; row < kLineRows; ++row) {
    text += fmt::format("{:>{}} {}\n", row_label(row, axis), kAxisWidth, canvas.row(row));
  }
  return text;
}

std::string iteration_axis(const Chart& chart, std::size_t left, std::size_t columns) {
  const std::string first = fmt::format("{}", chart.first_iteration);
  const std::string last = fmt::format("{}", chart.last_iteration);
  const std::size_t used = first.size() + last.size();
  const std::string gap(columns > used ? columns - used : 1, ' ');
  return fmt::format("{:>{}} {}{}{}\n", "iteration", left, first, gap, last);
}

std::string shade(const Bin& bin, const Axis& axis) {
  if (!bin.seen()) return " ";
  if (!bin.finite()) return colored(std::string(1, kNotFinite), Color::red);
  if (bin.warm_up()) return colored(std::string(1, kWarmUp), Color::dim);
  const auto level = static_cast<std::size_t>(
      std::lround(axis.place(bin.value()) * static_cast<double>(kShades.size() - 1)));
  return std::string(1, kShades[level]);
}

// Joins the bins of a column. A bin that spans several columns is in each of them.
Bin get_cell(const std::vector<Bin>& bins, std::size_t column, std::size_t columns) {
  const std::size_t begin = column * bins.size() / columns;
  const std::size_t end = std::max(begin + 1, (column + 1) * bins.size() / columns);
  Bin cell;
  for (std::size_t b = begin; b < end; ++b) {
    cell.add(bins[b]);
  }
  return cell;
}

// Returns the columns for `bins`: one each, or several for a short run.
std::size_t width_for(std::size_t bins, std::size_t most) {
  constexpr std::size_t kWideEnough = 40;
  return std::min(most, bins * std::max<std::size_t>(1, kWideEnough / bins));
}

// Returns a sentence, wrapped on a terminal.
std::string fitted(const std::string& sentence, std::size_t width) {
  if (!stdout_is_terminal()) return sentence + "\n";
  return fmt::format("{}\n", fmt::join(wrapped(sentence, width), "\n"));
}

// Returns " (logarithmic)", or "" for a linear axis.
std::string note_in_brackets(const Axis& axis) {
  return axis.note().empty() ? "" : fmt::format(" ({})", axis.note());
}

// Draws rows by iterations with a legend of the shades. Shows the first rows if there are many.
std::string text_heat_map(const Chart& chart, const std::vector<Line>& rows, const Axis& axis,
                          std::size_t width) {
  // Labels use at most half of a narrow terminal.
  const std::size_t longest = std::min(kLongestLabel, std::max<std::size_t>(width / 2, 16));
  std::size_t label_width = std::string_view("iteration").size();
  const std::size_t shown = std::min(rows.size(), kMostLayers);
  for (std::size_t i = 0; i < shown; ++i) {
    label_width = std::max(label_width, get_columns(shortened(rows[i].label, longest)));
  }
  const std::size_t columns =
      width_for(chart.bins, width > label_width + 20 ? width - label_width - 2 : std::size_t{20});
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    const Line& layer = rows[i];
    const std::string label = shortened(layer.label, longest);
    text += std::string(label_width - get_columns(label), ' ') + label + " ";
    for (std::size_t column = 0; column < columns; ++column) {
      text += shade(get_cell(layer.bins, column, columns), axis);
    }
    text += "\n";
  }
  text += iteration_axis(chart, label_width, columns);
  if (shown < rows.size()) {
    text += fmt::format("{} more layers; choose with --layer\n", rows.size() - shown);
  }
  const bool any_warm_up = std::ranges::any_of(rows, [](const Line& row) {
    return std::ranges::any_of(row.bins, [](const Bin& bin) { return bin.warm_up(); });
  });
  return text + fmt::format("{} = {:.4g}   {} = {:.4g}{}   {} = not finite{}\n", kShades.front(),
                            axis.value_at(0), kShades.back(), axis.value_at(1),
                            note_in_brackets(axis), kNotFinite,
                            any_warm_up ? fmt::format("   {} = warm-up", kWarmUp) : "");
}

constexpr char kBar = '#';

std::string draw_bars(const std::vector<Line>& rows, std::size_t width) {
  const Axis axis = Axis::of_percentages();
  std::size_t label_width = 0;
  for (const Line& row : rows) label_width = std::max(label_width, row.label.size());
  constexpr std::size_t kNumberWidth = 10;
  const std::size_t longest = width - label_width - kNumberWidth - 2;
  std::string text;
  for (const Line& row : rows) {
    const double percent = row.bins.front().value();
    const double length = axis.place(percent) * static_cast<double>(longest);
    const auto characters = static_cast<std::size_t>(percent > 0 ? std::max(1.0, length) : 0);
    text += fmt::format("{:>{}} {:>{}.4g}{}{}\n", row.label, label_width, percent, kNumberWidth,
                        characters > 0 ? " " : "", std::string(characters, kBar));
  }
  return text;
}

}  // namespace

std::string draw_text(const Chart& chart, int width) {
  const auto total = static_cast<std::size_t>(std::max(width, 40));
  const std::size_t columns = width_for(chart.bins, total - kAxisWidth - 2);
  std::string text;
  for (const Sentence& headline : chart.headlines) text += fitted(headline.text, total);
  if (!chart.subtitle.empty()) text += chart.subtitle + "\n";
  const auto add_line = [&](const std::string& title, const Line& line) {
    const Axis axis({line});
    text += fmt::format("\n{}{}\n", title, note_in_brackets(axis));
    text += draw_line(line, axis, columns) + iteration_axis(chart, kAxisWidth, columns);
  };
  for (const Line& scalar : chart.scalars) add_line(colored(scalar.label, Color::bold), scalar);
  for (const Panel& panel : chart.panels) {
    const Line& worst = panel.worst.front();
    add_line(fmt::format("{} of {}", colored(panel.statistic, Color::bold), worst.label), worst);
    text +=
        fmt::format("\n{} of each layer's worst tensor\n", colored(panel.statistic, Color::bold));
    text += text_heat_map(chart, panel.layers, Axis::of_map(panel.statistic, panel.layers), total);
  }
  return text;
}

std::string draw_text(const HistogramChart& chart, int width) {
  const auto total = static_cast<std::size_t>(std::max(width, 40));
  std::string text = chart.frame.subtitle + "\n";
  for (const TensorHistogram& tensor : chart.tensors) {
    text += fmt::format("\n{}{}\n", colored(tensor.tensor, Color::bold),
                        single_iteration(chart, tensor));
    text += chart.one_iteration()
                ? draw_bars(tensor.rows, total)
                : text_heat_map(chart.frame, tensor.rows, Axis::of_percentages(), total);
  }
  return text;
}

}  // namespace telens::cli
