// Scans a pattern of Python's `re` character by character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/text.h"

namespace telens::config {

inline bool is_octal(char c) { return c >= '0' && c <= '7'; }

// A position in a pattern, which advances as text is read. Throws UsageError that names the pattern
// and the position.
class PatternScanner {
 public:
  explicit PatternScanner(std::string_view pattern) : pattern_(pattern) {}

  bool at_end() const { return position_ == pattern_.size(); }
  bool has(std::size_t ahead) const { return position_ + ahead < pattern_.size(); }
  char peek() const { return peek(0); }
  char peek(std::size_t ahead) const {  // NUL at the end
    return has(ahead) ? pattern_[position_ + ahead] : '\0';
  }
  char take() { return pattern_[position_++]; }
  bool accept(std::string_view text);  // consumes the text if it is next

  std::size_t position() const { return position_; }
  void go_back_to(std::size_t position) { position_ = position; }

  // Returns the next character for a message; "" for a multi-byte character.
  std::string ascii_sign() const;
  // Consumes the text before `end` and `end` itself; returns the text.
  std::string take_until(char end, std::string_view what);
  // Reads exactly `digits` digits, as after \x. `letter` is used in the message.
  std::uint32_t hexadecimal(std::size_t digits, char letter);
  // Reads up to `digits` octal digits, including the given first one.
  std::uint32_t octal(char first, int digits);

  [[noreturn]] void refuse(std::string_view why) const;

 private:
  std::string_view pattern_;
  std::size_t position_ = 0;
};

}  // namespace telens::config
