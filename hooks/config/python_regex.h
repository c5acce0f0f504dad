// Regular expressions in the syntax and with the meaning of Python's `re`, run by PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace telens::config {

// A compiled pattern; copies share it. Thread-safe for searches.
class PythonRegex {
 public:
  // Throws UsageError if Python rejects the pattern, or for the few constructs without a
  // translation: \N{...}, and the flags a, L, x. The error names the construct and its position. In
  // addition to Python, alternatives in a lookbehind may have different lengths, (?<=a|bc).
  explicit PythonRegex(std::string_view pattern);

  // re.search: returns true if the pattern matches anywhere. Throws UsageError if the search takes
  // too many steps (a pattern with exponential backtracking) or the text is not UTF-8.
  bool search(std::string_view text) const;

  const std::string& pattern() const { return pattern_; }

 private:
  std::string pattern_;
  std::shared_ptr<const void> code_;
};

// Translates a pattern to PCRE2's syntax (UTF and UCP on).
std::string translate_python_regex(std::string_view pattern);

}  // namespace telens::config
