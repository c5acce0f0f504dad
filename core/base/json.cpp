#include "core/base/json.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/text.h"

namespace telens {

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

}  // namespace telens
