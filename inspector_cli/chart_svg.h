// The pieces of an SVG chart that the HTML page uses too. Lengths are in pixels.
#pragma once

#include <string>
#include <string_view>

#include "inspector_cli/chart.h"

namespace telens::cli {

// Text inside XML and HTML.
std::string escaped(std::string_view text);

inline constexpr int kChartWidth = 1100;
inline constexpr int kLeft = 340;  // labels stand left of it, in all charts: iterations align
inline constexpr int kRight = 30;
inline constexpr std::size_t kLongestLabel = 46;
// The colours of a panel's lines, in their order.
std::string_view line_colour(std::size_t line);

// A drawing and the height that it takes.
struct Drawing {
  std::string svg;
  int height = 0;
};
Drawing line_chart(const Chart& chart, const std::string& title, const std::vector<Line>& lines);
Drawing heat_map(const Chart& chart, const Panel& panel);
// A whole <svg> element around drawings, one below the other.
std::string svg_document(const std::vector<Drawing>& drawings);

}  // namespace telens::cli
