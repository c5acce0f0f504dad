// JSON that the command writes: tables for programs, and the data of its pages. Names come from run
// files and may hold any bytes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace telens::cli {

using Json = nlohmann::ordered_json;

// A JSON string. A byte that is no UTF-8 becomes the four characters of its escape, "\xff".
Json json_text(std::string_view text);
// A JSON number, or "NaN", "Infinity", "-Infinity" as a string: JSON has no numbers for them.
Json json_number(double value);

// Text of one line, in ASCII: other characters are escaped, those that are unseen among them.
std::string json_line(const Json& json);
// Text in which each element of a list, or of a list in an object, has a line of its own.
std::string json_lines(const Json& json);
// Text of one line that may stand inside a <script> element of a page.
std::string json_for_html(const Json& json);

}  // namespace telens::cli
