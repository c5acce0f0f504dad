// The pieces of charts in characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "inspector_cli/report/chart.h"
#include "inspector_cli/report/scale.h"

namespace telens::cli {

// Rows by iterations, with what the shades mean below. Of very many rows the first ones.
std::string text_heat_map(const Chart& chart, const std::vector<Line>& rows, const Scale& scale,
                          std::size_t width);

// " (logarithmic)"; nothing for a linear axis.
std::string note_in_brackets(const Scale& scale);

}  // namespace telens::cli
