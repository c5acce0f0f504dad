// Parts of hooks/config/yaml_reader.h that do not need the parser.
#include "hooks/config/yaml_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text.h"

namespace telens::config {

// ---- the YAML 1.1 scalars, classified like PyYAML's resolver

namespace {

constexpr std::array<std::string_view, 5> kNulls{"", "~", "null", "Null", "NULL"};
constexpr std::array<std::string_view, 9> kTrues{"yes",  "Yes", "YES", "true", "True",
                                                 "TRUE", "on",  "On",  "ON"};
constexpr std::array<std::string_view, 9> kFalses{"no",    "No",  "NO",  "false", "False",
                                                  "FALSE", "off", "Off", "OFF"};

template <std::size_t n>
bool is_one_of(const std::array<std::string_view, n>& words, std::string_view text) {
  return std::ranges::find(words, text) != words.end();
}

bool all_of_digits(std::string_view text, std::string_view digits) {
  return !text.empty() && text.find_first_not_of(digits) == std::string_view::npos;
}

std::string without_underscores(std::string_view text) {
  std::string result(text);
  std::erase(result, '_');
  return result;
}

// The digits of an integer, with a minus sign if negative, and their base.
struct IntegerText {
  std::string digits;
  int base = 10;
};

// Parses base 2, 8, 10 or 16, with underscores between digits. Returns nullopt for other scalars.
std::optional<IntegerText> integer_text(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  int base = 10;
  if (text.starts_with("0b") && all_of_digits(text.substr(2), "01_")) {
    base = 2;
    text.remove_prefix(2);
  } else if (text.starts_with("0x") && all_of_digits(text.substr(2), "0123456789abcdefABCDEF_")) {
    base = 16;
    text.remove_prefix(2);
  } else if (text.size() > 1 && text[0] == '0' && all_of_digits(text.substr(1), "01234567_")) {
    base = 8;
  } else if (text != "0" && (text.empty() || text[0] < '1' || text[0] > '9' ||
                             !all_of_digits(text, "0123456789_"))) {
    return std::nullopt;
  }
  std::string digits = without_underscores(text);
  if (negative) digits.insert(digits.begin(), '-');
  return IntegerText{std::move(digits), base};
}

std::from_chars_result parse(const IntegerText& text, std::int64_t& value) {
  const char* const begin = text.digits.data();
  return std::from_chars(begin, begin + text.digits.size(), value, text.base);
}

// Returns nullopt if the integer exceeds 64 bits.
std::optional<std::int64_t> parse_integer(std::string_view text) {
  const auto integer = integer_text(text);
  if (!integer) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = parse(*integer, value);
  if (error != std::errc{} || end != integer->digits.data() + integer->digits.size()) {
    return std::nullopt;
  }
  return value;
}

// Returns true for a text such as "e+5". YAML 1.1 requires the sign, so 1.0e5 is a string.
bool is_exponent(std::string_view text) {
  return text.size() > 2 && (text[0] == 'e' || text[0] == 'E') &&
         (text[1] == '-' || text[1] == '+') && all_of_digits(text.substr(2), "0123456789");
}

std::optional<double> parse_real(std::string_view text) {
  const bool has_sign = text.starts_with('-') || text.starts_with('+');
  const double sign = text.starts_with('-') ? -1 : 1;
  const std::string_view number = text.substr(has_sign ? 1 : 0);
  if (number == ".inf" || number == ".Inf" || number == ".INF") {
    return sign * std::numeric_limits<double>::infinity();
  }
  if (text == ".nan" || text == ".NaN" || text == ".NAN") {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto point = number.find('.');
  if (point == std::string_view::npos) return std::nullopt;
  const std::string_view whole = number.substr(0, point);
  std::string_view fraction = number.substr(point + 1);
  const auto exponent = std::min(fraction.find_first_of("eE"), fraction.size());
  const std::string_view tail = fraction.substr(exponent);
  fraction = fraction.substr(0, exponent);
  const bool whole_fits = whole.empty() ? !has_sign && !fraction.empty() && is_digit(fraction[0])
                                        : is_digit(whole[0]) && all_of_digits(whole, "0123456789_");
  const bool fraction_fits = fraction.empty() || all_of_digits(fraction, "0123456789_");
  if (!whole_fits || !fraction_fits || !(tail.empty() || is_exponent(tail))) return std::nullopt;
  const std::string digits = without_underscores(number);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  return sign * value;
}

}  // namespace

Value plain_scalar(std::string_view text) {
  if (is_one_of(kNulls, text)) return {};
  if (is_one_of(kTrues, text)) return true;
  if (is_one_of(kFalses, text)) return false;
  if (const auto integer = parse_integer(text)) return *integer;
  if (const auto real = parse_real(text)) return *real;
  return text;
}

bool is_too_large_integer(std::string_view text) {
  const auto integer = integer_text(text);
  std::int64_t value = 0;
  return integer && parse(*integer, value).ec == std::errc::result_out_of_range;
}

// ---- checks of a text

// ---- bytes

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

// ---- unclosed brackets and quotations

namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// Returns the position after the quotation that begins at `at`, or npos if it is not closed.
std::size_t end_of_quote(std::string_view yaml, std::size_t at) {
  const char quote = yaml[at];
  for (++at; at < yaml.size(); ++at) {
    if (quote == '"' && yaml[at] == '\\') {
      ++at;
    } else if (yaml[at] == quote) {
      const bool is_doubled = quote == '\'' && at + 1 < yaml.size() && yaml[at + 1] == quote;
      if (!is_doubled) return at + 1;
      ++at;
    }
  }
  return std::string_view::npos;
}

// A quote inside a word, as in don't, is a letter.
bool begins_word(std::string_view yaml, std::size_t at) {
  return at == 0 || (std::string_view("[{,:").find(yaml[at - 1]) != std::string_view::npos) ||
         kBlanks.find(yaml[at - 1]) != std::string_view::npos;
}

bool begins_comment(std::string_view yaml, std::size_t at) {
  return yaml[at] == '#' && (at == 0 || kBlanks.find(yaml[at - 1]) != std::string_view::npos);
}

Unclosed unclosed_at(std::string_view yaml, std::size_t at) {
  const std::string_view before = yaml.substr(0, at);
  const std::size_t line_end = before.rfind('\n');
  return {yaml[at], yaml[at] == '[' ? ']' : '}',
          1 + static_cast<std::size_t>(std::ranges::count(before, '\n')),
          line_end == std::string_view::npos ? at + 1 : at - line_end};
}

}  // namespace

std::optional<Unclosed> find_unclosed_bracket(std::string_view yaml, std::size_t begin) {
  if (begin >= yaml.size() || (yaml[begin] != '[' && yaml[begin] != '{')) return std::nullopt;
  std::vector<std::size_t> open;
  for (std::size_t at = begin; at < yaml.size(); ++at) {
    const char c = yaml[at];
    if (c == '[' || c == '{') {
      open.push_back(at);
    } else if (c == ']' || c == '}') {
      const char expected = yaml[open.back()] == '[' ? ']' : '}';
      if (c != expected) return unclosed_at(yaml, open.back());
      open.pop_back();
      if (open.empty()) return std::nullopt;
    } else if ((c == '"' || c == '\'') && begins_word(yaml, at)) {
      at = end_of_quote(yaml, at);
      if (at == std::string_view::npos) break;
      --at;
    } else if (begins_comment(yaml, at)) {
      at = std::min(yaml.find('\n', at), yaml.size());
    }
  }
  return unclosed_at(yaml, open.back());
}

bool is_unclosed_quote(std::string_view yaml, std::size_t begin) {
  if (begin >= yaml.size() || (yaml[begin] != '"' && yaml[begin] != '\'')) return false;
  return end_of_quote(yaml, begin) == std::string_view::npos;
}

}  // namespace telens::config
