// The drawings of an SVG chart, which the HTML page has too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/scale.h"
#include "inspector_cli/report/svg_pieces.h"

namespace telens::cli {

// The colours of a panel's lines, in their order.
std::string_view line_colour(std::size_t line);

Drawing line_chart(const Chart& chart, const std::string& title, const std::vector<Line>& lines);
// A row for each line, in their order.
Drawing heat_map(const Chart& chart, const std::string& title, const std::vector<Line>& lines,
                 const Scale& scale);
// Run and headlines.
Drawing headline(const Chart& chart);

}  // namespace telens::cli
