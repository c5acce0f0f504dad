// The pieces that SVG charts are made of. Lengths are in pixels.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inspector_cli/report/chart.h"

namespace telens::cli {

inline constexpr int kChartWidth = 1100;
inline constexpr int kLeft = 340;  // labels stand left of it, in all charts: iterations align
inline constexpr int kRight = 30;
inline constexpr int kPlotWidth = kChartWidth - kLeft - kRight;
inline constexpr int kTitleHeight = 34;
inline constexpr int kAxisHeight = 34;
inline constexpr std::size_t kLongestLabel = 46;
inline constexpr std::string_view kNotFiniteColour = "#d7191c";
inline constexpr std::string_view kWarmUpColour = "#b0b0b0";
inline constexpr std::string_view kFaint = "fill=\"#666\"";

// A drawing and the height that it takes.
struct Drawing {
  std::string svg;
  int height = 0;
};
// A whole <svg> element around drawings, one below the other.
std::string svg_document(const std::vector<Drawing>& drawings);

// What a headline is written in.
std::string_view colour_of(Gravity gravity);

// Text inside XML and HTML, and inside attributes of theirs.
std::string escaped(std::string_view text);
std::string text_at(double x, double y, std::string_view anchor, std::string_view text,
                    std::string_view attributes = "");
// The title, and beside it, faintly, a note, as what is unusual about the axis of the values.
std::string title_text(const std::string& title, const std::string& note);
std::string frame(int top, int height);

// Where a bin begins, and how wide it is.
double x_of(const Chart& chart, std::size_t bin);
double bin_width(const Chart& chart);
// Iterations below a plot, and the line at which things went wrong.
std::string axis(const Chart& chart, int top, int height);

}  // namespace telens::cli
