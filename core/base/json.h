// JSON output for programs. Names come from run files and may contain any bytes. No LibTorch.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace telens {

using Json = nlohmann::ordered_json;

// Returns a JSON string. An invalid UTF-8 byte becomes the four characters of its escape, "\xff".
Json json_text(std::string_view text);
// Returns a JSON number, or "NaN", "Infinity" or "-Infinity" as a string: JSON lacks these numbers.
Json json_number(double value);

// Returns one line of ASCII; escapes other characters, including invisible ones.
std::string json_line(const Json& json);

}  // namespace telens
