// The HTML page of `telens plot`, `report` and `serve`.
#pragma once

#include <string>
#include <string_view>

#include "core/base/json.h"

namespace telens::cli {

// Returns one line of JSON that is safe inside a <script> element.
std::string json_for_html(const Json& json);
// Returns a page with such data. The page opens without a network.
std::string make_page(std::string_view data);
// Returns a page that may fetch updates from the server that it came from.
std::string make_live_page(std::string_view data);
// Returns the Content-Security-Policy of a live page, for an HTTP header.
const std::string& live_page_policy();

// page.html up to its data, and the rest with the scripts. CMake embeds both.
extern const std::string_view kPageBegin;
extern const std::string_view kPageEnd;

}  // namespace telens::cli
