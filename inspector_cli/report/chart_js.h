// Chart.js as it goes into HTML pages; empty if the build did not find it.
#pragma once

#include <string_view>

namespace telens::cli {

extern const std::string_view kChartJs;

}  // namespace telens::cli
