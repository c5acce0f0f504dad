// Regular expressions in the syntax and with the meaning of Python's `re`, run by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace telens::config {

// A compiled pattern; copies share it. Any thread may search.
class PythonRegex {
 public:
  // Throws UsageError, naming the construct and its position, where Python would refuse the
  // pattern, and for the few constructs that have no translation: \N{...}, and the flags a, L, x.
  // (One thing more than Python: alternatives of different lengths in a lookbehind, (?<=a|bc).)
  explicit PythonRegex(std::string_view pattern);

  // re.search: whether the pattern matches anywhere. Throws UsageError where the search takes too
  // many steps (a pattern with exponential backtracking) or the text is no UTF-8.
  bool search(std::string_view text) const;

  const std::string& pattern() const { return pattern_; }

 private:
  std::string pattern_;
  std::shared_ptr<const void> code_;
};

// The same pattern in PCRE2's syntax (UTF and UCP on).
std::string translate_python_regex(std::string_view pattern);

}  // namespace telens::config
