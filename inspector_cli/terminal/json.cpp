#include "inspector_cli/terminal/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace telens::cli {

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
