#include "core/base/text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

namespace telens {
namespace {

constexpr std::size_t kMostNamed = 8;  // ranks in a list

unsigned char byte_at(std::string_view text, std::size_t at) {
  return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
}

struct CodePoints {
  char32_t first;
  char32_t last;
};

// Unicode's control characters; format characters (category Cf) and separators that move, hide or
// reverse their neighbors; and characters that XML 1.0 (section 2.2) forbids.
constexpr std::array kUnseen{
    CodePoints{0x00, 0x1F},       CodePoints{0x7F, 0x9F},     CodePoints{0xAD, 0xAD},
    CodePoints{0x61C, 0x61C},     CodePoints{0x180E, 0x180E}, CodePoints{0x200B, 0x200F},
    CodePoints{0x2028, 0x202E},   CodePoints{0x2060, 0x206F}, CodePoints{0xFEFF, 0xFEFF},
    CodePoints{0xFFF9, 0xFFFB},   CodePoints{0xFFFE, 0xFFFF}, CodePoints{0x1D173, 0x1D17A},
    CodePoints{0xE0000, 0xE007F},
};

char32_t code_point(std::string_view text, std::size_t at, std::size_t length) {
  constexpr std::array<unsigned, 5> kLeadBits{0, 0x7F, 0x1F, 0x0F, 0x07};
  char32_t code = byte_at(text, at) & kLeadBits[length];
  for (std::size_t k = 1; k < length; ++k) code = code << 6U | (byte_at(text, at + k) & 0x3FU);
  return code;
}

// A fast path: most texts need no escapes.
bool is_plain_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

void append_escape(std::string& out, char32_t code) {
  const auto value = static_cast<std::uint32_t>(code);
  if (code == '\n') {
    out += "\\n";
  } else if (code == '\t') {
    out += "\\t";
  } else if (code == '\r') {
    out += "\\r";
  } else if (code < 0x100) {
    fmt::format_to(std::back_inserter(out), "\\x{:02x}", value);
  } else if (code < 0x10000) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", value);
  } else {
    fmt::format_to(std::back_inserter(out), "\\U{:08x}", value);
  }
}

// `kept`: invisible ASCII characters that are not escaped.
std::string escaped(std::string_view text, std::string_view kept, std::string_view indent) {
  if (is_plain_ascii(text)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](std::string_view bytes, std::optional<char32_t> code) {
    const bool stays = code && (!is_unseen(*code) || kept.find(bytes) != std::string_view::npos);
    if (!stays) return append_escape(out, code.value_or(static_cast<unsigned char>(bytes[0])));
    out += bytes;
    if (*code == '\n') out += indent;
  });
  return out;
}

bool is_shell_safe(char c) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:,@%=";
  return kPlain.find(c) != std::string_view::npos;
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const unsigned char lead = byte_at(text, at);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (at + length > text.size()) return 0;
  const unsigned char second = byte_at(text, at + 1);
  const unsigned char lowest = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char highest = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (second < lowest || second > highest) return 0;
  for (std::size_t k = 2; k < length; ++k) {
    if ((byte_at(text, at + k) & 0xC0U) != 0x80) return 0;
  }
  return length;
}

bool is_unseen(char32_t code) {
  return std::ranges::any_of(
      kUnseen, [=](const CodePoints& range) { return range.first <= code && code <= range.last; });
}

void for_each_character(std::string_view text, const UseCharacter& use) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) {
      use(text.substr(at++, 1), std::nullopt);
    } else {
      use(text.substr(at, length), code_point(text, at, length));
      at += length;
    }
  }
}

std::string printable(std::string_view text) { return escaped(text, {}, {}); }

std::string printable_lines(std::string_view text, std::string_view indent) {
  return escaped(text, "\n\t", indent);
}

std::size_t get_columns(std::string_view printable_text) {
  return std::ranges::count_if(
      printable_text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

std::string format_ranks(std::span<const int> ranks) {
  const std::size_t named = std::min(ranks.size(), kMostNamed);
  const std::string others =
      ranks.size() > named ? fmt::format(" and {} more", ranks.size() - named) : "";
  return fmt::format("{}{}", fmt::join(ranks.first(named), ", "), others);
}

std::string describe_ranks(std::span<const int> ranks) {
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", format_ranks(ranks));
}

std::string shell_word(const std::string& text) {
  if (!text.empty() && std::ranges::all_of(text, is_shell_safe)) return text;
  std::string word = "'";
  for (const char c : text) {
    if (c == '\'') {
      word += R"('\'')";
    } else {
      word += c;
    }
  }
  return word + "'";
}

}  // namespace telens
