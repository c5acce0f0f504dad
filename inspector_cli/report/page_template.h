// The page that `telens plot --out x.html` fills: page.html with Chart.js, which CMake embeds.
#pragma once

#include <string_view>

namespace telens::cli {

// A page is kPageBegin, its data as JSON without any '<', and kPageEnd.
extern const std::string_view kPageBegin;
extern const std::string_view kPageEnd;

}  // namespace telens::cli
