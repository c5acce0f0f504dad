// JSON that is written for programs. Names come from run files and may hold any bytes. No LibTorch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace telens {

using Json = nlohmann::ordered_json;

// A JSON string. A byte that is no UTF-8 becomes the four characters of its escape, "\xff".
Json json_text(std::string_view text);
// A JSON number, or "NaN", "Infinity", "-Infinity" as a string: JSON has no numbers for them.
Json json_number(double value);

// Text of one line, in ASCII: other characters are escaped, those that are unseen among them.
std::string json_line(const Json& json);

}  // namespace telens
