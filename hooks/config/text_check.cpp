#include "hooks/config/text_check.h"

#include "core/base/text.h"

namespace telens::config {
namespace {

unsigned char at(std::string_view text, std::size_t i) {
  return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

bool is_control(unsigned char byte) {
  constexpr unsigned char kDelete = 0x7F;
  return (byte < ' ' && byte != '\t' && byte != '\n' && byte != '\r') || byte == kDelete;
}

}  // namespace

std::optional<BadByte> first_bad_byte(std::string_view text) {
  BadByte here;
  for (std::size_t i = 0; i < text.size();) {
    here.byte = at(text, i);
    const std::size_t length = utf8_length(text, i);
    if (length == 0 || is_control(here.byte)) return here;
    ++here.column;
    if (here.byte == '\n') {
      ++here.line;
      here.column = 1;
    }
    i += length;
  }
  return std::nullopt;
}

bool is_utf16_or_utf32(std::string_view text) {
  if (text.size() < 2) return false;
  const unsigned char a = at(text, 0);
  const unsigned char b = at(text, 1);
  const bool marked = (a == 0xFE && b == 0xFF) || (a == 0xFF && b == 0xFE) ||
                      (a == 0 && b == 0 && at(text, 2) == 0xFE && at(text, 3) == 0xFF);
  const auto is_letter = [](unsigned char byte) { return byte >= '\t' && byte < 0x7F; };
  return marked || (a == 0 && is_letter(b)) || (is_letter(a) && b == 0) ||
         (a == 0 && b == 0 && at(text, 2) == 0 && is_letter(at(text, 3)));
}

}  // namespace telens::config
