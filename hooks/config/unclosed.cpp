#include "hooks/config/unclosed.h"

#include <algorithm>
#include <vector>

namespace telens::config {
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
