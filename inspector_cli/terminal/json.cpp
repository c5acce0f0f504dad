#include "inspector_cli/terminal/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/printable.h"

namespace telens::cli {

Json json_text(std::string_view text) {
  std::string utf8;
  for_each_character(text, [&](std::string_view bytes, std::optional<char32_t> code) {
    if (code) {
      utf8 += bytes;
    } else {
      utf8 += fmt::format("\\x{:02x}", static_cast<unsigned char>(bytes[0]));
    }
  });
  return utf8;
}

Json json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

std::string json_line(const Json& json) {
  constexpr bool kAscii = true;
  return json.dump(-1, ' ', kAscii, Json::error_handler_t::replace);
}

std::string json_lines(const Json& json) {
  std::string text;
  if (json.is_array()) {
    for (const Json& element : json) {
      text += fmt::format("{}\n {}", text.empty() ? "" : ",", json_line(element));
    }
    return fmt::format("[{}\n]", text);
  }
  if (!json.is_object()) return json_line(json);
  for (const auto& [key, value] : json.items()) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ",\n", json_line(key),
                        value.is_array() && !value.empty() ? json_lines(value) : json_line(value));
  }
  return fmt::format("{{{}}}", text);
}

std::string json_for_html(const Json& json) {
  std::string text = json_line(json);
  for (std::size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    text.replace(at, 1, "\\u003c");  // no "</script>", no "<!--"; '<' stands in strings alone
  }
  return text;
}

}  // namespace telens::cli
