#include "inspector_cli/terminal/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/base/text.h"

namespace telens::cli {
namespace {

// A line may be broken after these characters.
constexpr std::string_view kBreaks = " ./_,";
constexpr std::string_view kSeparators = ". ";
constexpr std::string_view kCut = "~";

std::string_view shared_beginning(std::string_view a, std::string_view b) {
  const auto end = std::ranges::mismatch(a, b).in1;
  return a.substr(0, static_cast<std::size_t>(end - a.begin()));
}

std::string_view shared_end(std::string_view a, std::string_view b) {
  std::size_t length = 0;
  const std::size_t most = std::min(a.size(), b.size());
  while (length < most && a[a.size() - 1 - length] == b[b.size() - 1 - length]) ++length;
  return a.substr(a.size() - length);
}

// Splits a label into parts; each part begins with its separator.
std::vector<std::string> split_parts(std::string_view label) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < label.size();) {
    const std::size_t end = std::min(label.find_first_of(kSeparators, at + 1), label.size());
    parts.emplace_back(label.substr(at, end - at));
    at = end;
  }
  return parts;
}

bool has_digit(std::string_view text) { return std::ranges::any_of(text, is_digit); }

void drop_last_character(std::string& text) {
  while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0U) == 0x80U) {
    text.pop_back();
  }
  if (!text.empty()) text.pop_back();
}

// Returns the byte offset of UTF-8 character `number`, or the text size if there are fewer.
std::size_t find_character(std::string_view text, std::size_t number) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool is_first = (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
    if (is_first && number-- == 0) return at;
  }
  return text.size();
}

// Removes one more character from the end of a part and marks the cut.
void cut(std::string& part) {
  if (part.ends_with(kCut)) part.resize(part.size() - kCut.size());
  drop_last_character(part);
  part += kCut;
}

}  // namespace

std::string number_text(double value, int significant_digits) {
  return std::isnan(value) ? "nan" : fmt::format("{:.{}g}", value, significant_digits);
}

std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
  std::vector<std::string> lines(1);
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find_first_of(kBreaks, at);
    end = end == std::string::npos ? text.size() : end + 1;
    const std::string piece = text.substr(at, end - at);
    std::string bare = piece;
    if (bare.ends_with(' ')) bare.pop_back();
    if (!lines.back().empty() && get_columns(lines.back()) + get_columns(bare) > width) {
      lines.emplace_back();
    }
    lines.back() += piece;
    at = end;
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

std::vector<std::string> wrapped_at_blanks(const std::string& text, std::size_t width) {
  std::vector<std::string> lines(1);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    std::string& line = lines.back();
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      lines.emplace_back(word);
    } else {
      line += (line.empty() ? "" : " ") + word;
    }
    begin = end + 1;
  }
  std::vector<std::string> fitting;
  for (const std::string& line : lines)
    std::ranges::move(wrapped(line, width), std::back_inserter(fitting));
  return fitting;
}

CommonParts common_parts(std::span<const std::string> names) {
  if (names.size() < 2) return {};
  std::string_view beginning = names.front();
  for (const std::string& name : names) beginning = shared_beginning(beginning, name);
  beginning = beginning.substr(0, std::ranges::find_if(beginning, is_digit) - beginning.begin());
  const auto last_dot = beginning.rfind('.');
  CommonParts common;
  if (last_dot != std::string_view::npos) common.prefix = beginning.substr(0, last_dot + 1);
  std::string_view end = std::string_view(names.front()).substr(common.prefix.size());
  for (const std::string& name : names) {
    end = shared_end(end, std::string_view(name).substr(common.prefix.size()));
  }
  const auto last_digit = end.find_last_of("0123456789");
  const auto first_dot = end.find('.', last_digit == std::string_view::npos ? 0 : last_digit);
  if (first_dot != std::string_view::npos) common.suffix = end.substr(first_dot);
  return common;
}

std::string CommonParts::without(std::string_view label) const {
  const std::size_t blank = std::min(label.find(' '), label.size());
  std::string_view name = label.substr(0, blank);
  if (name.size() <= prefix.size() + suffix.size()) return std::string(label);
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::string(label);
  name = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  return fmt::format("{}{}", name, label.substr(blank));
}

std::string CommonParts::sentence() const {
  return fmt::format("layers are named {}<...>{}", prefix, suffix);
}

std::string cut_in_the_middle(std::string_view text, std::size_t longest) {
  const std::size_t columns = get_columns(text);
  if (columns <= longest) return std::string(text);
  const std::size_t kept = longest - std::min(longest, kCut.size());
  const std::size_t head = find_character(text, kept - kept / 2);
  const std::size_t tail = find_character(text, columns - kept / 2);
  return fmt::format("{}{}{}", text.substr(0, head), kCut, text.substr(tail));
}

std::string shortened(std::string_view label, std::size_t longest) {
  constexpr std::size_t kLeastPart = 3;  // the separator, a letter and the cut
  std::vector<std::string> parts = split_parts(label);
  std::size_t width = get_columns(label);
  while (width > longest) {
    const auto size_of = [](const std::string& part) {
      return has_digit(part) ? 0 : get_columns(part);
    };
    const auto widest = std::ranges::max_element(parts, {}, size_of);
    if (widest == parts.end() || size_of(*widest) <= kLeastPart) break;
    width -= get_columns(*widest);
    cut(*widest);
    width += get_columns(*widest);
  }
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

}  // namespace telens::cli
