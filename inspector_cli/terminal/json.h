// JSON that the command writes beside core/base/json.h: tables for programs, and the data of its
// pages.
#pragma once

#include <string>

#include "core/base/json.h"

namespace telens::cli {

// Text in which each element of a list, or of a list in an object, has a line of its own.
std::string json_lines(const Json& json);
// Text of one line that may stand inside a <script> element of a page.
std::string json_for_html(const Json& json);

}  // namespace telens::cli
