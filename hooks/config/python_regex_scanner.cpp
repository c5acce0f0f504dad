#include "hooks/config/python_regex_scanner.h"

#include <fmt/format.h>

#include <charconv>

#include "core/base/error.h"
#include "hooks/config/value.h"

namespace telens::config {
namespace {

constexpr std::uint32_t kMaxCodePoint = 0x10ffff;
constexpr std::uint32_t kMaxOctal = 0377;  // Python rejects larger octal escapes

}  // namespace

bool PatternScanner::accept(std::string_view text) {
  if (!pattern_.substr(position_).starts_with(text)) return false;
  position_ += text.size();
  return true;
}

std::string PatternScanner::ascii_sign() const {
  return peek() > ' ' && peek() < 0x7f ? std::string{peek()} : std::string{};
}

void PatternScanner::refuse(std::string_view why) const {
  raise<UsageError>("the regular expression '{}' is refused at character {}: {}",
                    quotable(pattern_), position_, quotable(why, 3 * kLongestQuote));
}

std::string PatternScanner::take_until(char end, std::string_view what) {
  const auto found = pattern_.find(end, position_);
  if (found == std::string_view::npos) refuse(fmt::format("{} is not closed", what));
  std::string text(pattern_.substr(position_, found - position_));
  position_ = found + 1;
  return text;
}

std::uint32_t PatternScanner::hexadecimal(std::size_t digits, char letter) {
  const std::string_view text = pattern_.substr(position_, digits);
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != digits || error != std::errc{} || end != text.data() + digits) {
    refuse(fmt::format("\\{} needs {} hexadecimal digits", letter, digits));
  }
  if (value > kMaxCodePoint) refuse("no such character");
  position_ += digits;
  return value;
}

std::uint32_t PatternScanner::octal(char first, int digits) {
  std::uint32_t value = static_cast<std::uint32_t>(first - '0');
  for (int i = 1; i < digits && is_octal(peek()); ++i) {
    value = value * 8 + static_cast<std::uint32_t>(take() - '0');
  }
  if (value > kMaxOctal) refuse("an octal escape above \\377");
  return value;
}

}  // namespace telens::config
