// Reads a pattern of Python's `re` module character by character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/text.h"

namespace telens::config {

inline bool is_octal(char c) { return c >= '0' && c <= '7'; }

// A read position in a pattern. Errors are UsageErrors that name the pattern and the position.
class PatternScanner {
 public:
  explicit PatternScanner(std::string_view pattern) : pattern_(pattern) {}

  bool at_end() const { return position_ == pattern_.size(); }
  bool has(std::size_t ahead) const { return position_ + ahead < pattern_.size(); }
  char peek() const { return peek(0); }
  // Returns NUL beyond the end.
  char peek(std::size_t ahead) const { return has(ahead) ? pattern_[position_ + ahead] : '\0'; }
  char take() { return pattern_[position_++]; }
  // Consumes the text and returns true if the pattern continues with it.
  bool accept(std::string_view text);

  std::size_t position() const { return position_; }
  void go_back_to(std::size_t position) { position_ = position; }

  // Returns the next character for a message; "" if it is not ASCII.
  std::string ascii_sign() const;
  // Consumes the text up to and including `end`. Returns the text without `end`. `what`: the
  // missing part, for the message if `end` is missing.
  std::string take_until(char end, std::string_view what);
  // Reads exactly `digits` hexadecimal digits of an escape such as \x. `letter`: the escape's
  // letter, for the message.
  std::uint32_t hexadecimal(std::size_t digits, char letter);
  // Reads an octal number of up to `digits` digits, whose first digit has been consumed.
  std::uint32_t octal(char first, int digits);

  [[noreturn]] void refuse(std::string_view why) const;

 private:
  std::string_view pattern_;
  std::size_t position_ = 0;
};

}  // namespace telens::config
