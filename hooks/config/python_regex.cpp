#include "hooks/config/python_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "hooks/config/value.h"

namespace telens::config {
namespace {

// ---- reading a pattern

constexpr std::uint32_t kMaxCodePoint = 0x10ffff;
constexpr std::uint32_t kMaxOctal = 0377;  // Python rejects larger octal escapes

bool is_octal(char c) { return c >= '0' && c <= '7'; }

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

// ---- translation

// Translates Python's `re` syntax to PCRE2's. Parses the pattern like Python's parser
// (Lib/re/_parser.py of CPython 3.11). Syntax that only PCRE2 knows ((*VERB), \Q, (?R), \h, POSIX
// classes, (?<name>)) is rejected or read literally, as in Python.

bool is_identifier(std::string_view name) {
  if (name.empty() || is_digit(name[0])) return false;
  for (const char c : name) {
    if (!is_letter(c) && !is_digit(c) && c != '_') return false;
  }
  return true;
}

std::string code_point(std::uint32_t value) { return fmt::format("\\x{{{:x}}}", value); }

// Returns a character that PCRE2 reads literally.
std::string literal(char c) {
  const bool is_word = is_letter(c) || is_digit(c) || c == '_';
  const bool is_ascii_sign = c > ' ' && c < 0x7f && !is_word;
  return is_ascii_sign ? std::string{'\\', c} : std::string{c};
}

class Translator : private PatternScanner {
 public:
  explicit Translator(std::string_view pattern) : PatternScanner(pattern) {}

  std::string translate();

 private:
  struct Group {
    std::string name;  // empty for an unnamed group
    bool is_open;
  };
  static constexpr std::size_t kNotCapturing = std::string_view::npos;

  // The item before a quantifier.
  enum class Before { nothing, assertion, item, repeat };

  void emit(std::string_view text, Before before) {
    output_ += text;
    before_ = before;
  }
  void emit_item(std::string_view text) { emit(text, Before::item); }

  void escape();
  // Escapes with the same meaning inside and outside of [...]; nullopt for any other escape.
  std::optional<std::string> common_escape(char c);
  std::string back_reference(char first);
  void refuse_if_open(const Group& group) const {
    if (group.is_open) refuse("a reference to a group inside that group");
  }

  // A member of [...]: its text, and whether it is a set of characters, such as \d.
  struct Member {
    std::string text;
    bool is_set;
  };
  Member class_member();
  // Parses after '['. A leading ']' is a member. '[' is a member at any position, so [[:alpha:]] is
  // a set of punctuation and letters as in Python, not a POSIX class.
  std::string character_class();

  void open_group();
  void open_capturing(std::string_view text, std::string name) {
    open_.push_back(groups_.size());
    groups_.push_back({std::move(name), true});
    emit(text, Before::nothing);
  }
  // Parses after "(?P": a named group, or a reference to one.
  void named_group();
  void conditional();  // (?(1)yes|no), (?(name)yes|no)
  void flags();        // (?i), (?i:...), (?i-m:...)
  void close_group();

  void repeat(std::string_view quantifier);
  // {m}, {m,}, {,n}, {m,n} or {,} is a repetition; any other brace is a literal.
  void brace();

  std::string output_;
  Before before_ = Before::nothing;
  std::size_t flags_size_ = 0;     // length of the flags at the start of the output
  std::vector<Group> groups_;      // all capturing groups so far, from number 1 on
  std::vector<std::size_t> open_;  // indices of groups_, or kNotCapturing
};

std::string Translator::translate() {
  while (!at_end()) {
    const char c = take();
    switch (c) {
      case '\\':
        escape();
        break;
      case '[':
        emit_item(character_class());
        break;
      case '(':
        open_group();
        break;
      case ')':
        close_group();
        break;
      case '|':
        emit("|", Before::nothing);
        break;
      case '^':
      case '$':
        emit(std::string{c}, Before::assertion);
        break;
      case '.':
        emit_item(".");
        break;
      case '*':
      case '+':
      case '?':
        repeat(std::string{c});
        break;
      case '{':
        brace();
        break;
      default:
        emit_item(literal(c));
    }
  }
  if (!open_.empty()) refuse("a group '(' is not closed");
  return std::move(output_);
}

std::optional<std::string> Translator::common_escape(char c) {
  switch (c) {
    case 'd':
    case 'D':
    case 's':
    case 'S':
    case 'w':
    case 'W':
      return std::string{'\\', c};
    case 'x':
      return code_point(hexadecimal(2, c));
    case 'u':
      return code_point(hexadecimal(4, c));
    case 'U':
      return code_point(hexadecimal(8, c));
    case 'a':
      return code_point('\a');
    case 'f':
      return code_point('\f');
    case 'n':
      return code_point('\n');
    case 'r':
      return code_point('\r');
    case 't':
      return code_point('\t');
    case 'v':
      return code_point('\v');
    case 'N':
      refuse("\\N{...} is not supported; write the character itself or \\uXXXX");
    default:
      if (is_letter(c) || is_digit(c)) return std::nullopt;
      return literal(c);
  }
}

void Translator::escape() {
  if (at_end()) refuse("a backslash at the end");
  const char c = take();
  if (c == 'A' || c == 'b' || c == 'B') return emit(std::string{'\\', c}, Before::assertion);
  if (c == 'Z') return emit("\\z", Before::assertion);
  if (c == '0') return emit_item(code_point(octal(c, 3)));
  if (is_digit(c)) return emit_item(back_reference(c));
  const auto common = common_escape(c);
  if (!common) refuse(fmt::format("Python's re does not support the escape \\{}", c));
  emit_item(*common);
}

std::string Translator::back_reference(char first) {
  int number = first - '0';
  if (is_digit(peek())) {
    const bool is_octal_escape = is_octal(first) && is_octal(peek()) && is_octal(peek(1));
    if (is_octal_escape) return code_point(octal(first, 3));
    number = number * 10 + (take() - '0');
  }
  if (number > static_cast<int>(groups_.size())) {
    refuse(fmt::format("group {} is not defined before this", number));
  }
  refuse_if_open(groups_[static_cast<std::size_t>(number) - 1]);
  return fmt::format("\\g{{{}}}", number);
}

Translator::Member Translator::class_member() {
  const char c = take();
  if (c != '\\') return {literal(c), false};
  if (at_end()) refuse("a backslash at the end");
  const char escaped = take();
  if (escaped == 'b') return {code_point('\b'), false};
  if (is_octal(escaped)) return {code_point(octal(escaped, 3)), false};
  const auto common = common_escape(escaped);
  if (!common)
    refuse(fmt::format("Python's re does not support the escape \\{} in a set [...]", escaped));
  return {*common, std::string_view("dDsSwW").find(escaped) != std::string_view::npos};
}

std::string Translator::character_class() {
  std::string text = accept("^") ? "[^" : "[";
  bool first = true;
  while (true) {
    if (at_end()) refuse("a set '[' is not closed");
    if (peek() == ']' && !first) break;
    first = false;
    const Member low = class_member();
    text += low.text;
    const bool is_range = peek() == '-' && has(1) && peek(1) != ']';
    if (!is_range) continue;
    take();
    const Member high = class_member();
    if (low.is_set || high.is_set) refuse("a range in [...] between sets of characters");
    text += '-' + high.text;
  }
  take();
  return text + ']';
}

void Translator::open_group() {
  if (!accept("?")) return open_capturing("(", "");
  open_.push_back(kNotCapturing);
  for (const std::string_view same : {":", "=", "!", "<=", "<!", ">"}) {
    if (accept(same)) return emit(fmt::format("(?{}", same), Before::nothing);
  }
  if (accept("P")) return named_group();
  if (accept("#")) {
    take_until(')', "a comment (?#");
    open_.pop_back();
    return;
  }
  if (accept("(")) return conditional();
  flags();
}

void Translator::named_group() {
  open_.pop_back();
  if (accept("<")) {
    const std::string name = take_until('>', "the name of a group");
    if (!is_identifier(name)) refuse(fmt::format("'{}' is not a valid group name", name));
    return open_capturing(fmt::format("(?P<{}>", name), name);
  }
  if (!accept("=")) refuse("Python's re does not support the group (?P");
  const std::string name = take_until(')', "a reference (?P=");
  const auto group = std::ranges::find(groups_, name, &Group::name);
  if (name.empty() || group == groups_.end()) {
    refuse(fmt::format("group '{}' is not defined before this", name));
  }
  refuse_if_open(*group);
  emit_item(fmt::format("(?P={})", name));
}

void Translator::conditional() {
  const std::string group = take_until(')', "a condition (?(");
  int number = 0;
  const auto [end, error] = std::from_chars(group.data(), group.data() + group.size(), number);
  if (error == std::errc{} && end == group.data() + group.size() && number > 0) {
    return emit(fmt::format("(?({})", number), Before::nothing);
  }
  if (!is_identifier(group)) refuse(fmt::format("'{}' is not a group", group));
  emit(fmt::format("(?(<{}>)", group), Before::nothing);
}

void Translator::flags() {
  std::string text;
  while (is_letter(peek()) || peek() == '-') text += take();
  for (const char flag : text) {
    if (std::string_view("aLx").find(flag) != std::string_view::npos) {
      refuse(fmt::format("the flag '{}' is not supported", flag));
    }
    if (std::string_view("imsu-").find(flag) == std::string_view::npos) {
      refuse(fmt::format("Python's re does not support the group (?{}", text));
    }
  }
  // 'u' is the default.
  std::erase(text, 'u');
  if (accept(":")) return emit(fmt::format("(?{}:", text), Before::nothing);
  if (!accept(")"))
    refuse(fmt::format("Python's re does not support the group (?{}{}", text, ascii_sign()));
  if (output_.size() != flags_size_) refuse("flags for the whole expression must be at its start");
  if (text.find('-') != std::string::npos) refuse("flags are switched off by (?-i:...)");
  open_.pop_back();
  if (!text.empty()) emit(fmt::format("(?{})", text), Before::nothing);
  flags_size_ = output_.size();
}

void Translator::close_group() {
  if (open_.empty()) refuse("a ')' without its '('");
  if (open_.back() != kNotCapturing) groups_[open_.back()].is_open = false;
  open_.pop_back();
  emit_item(")");
}

void Translator::repeat(std::string_view quantifier) {
  if (before_ == Before::repeat) refuse("one repetition directly after another");
  if (before_ != Before::item) refuse("nothing to repeat");
  output_ += quantifier;
  if (peek() == '?' || peek() == '+') output_ += take();
  before_ = Before::repeat;
}

void Translator::brace() {
  const std::size_t begin = position();
  const auto number = [&] {
    std::string digits;
    while (is_digit(peek())) digits += take();
    return digits;
  };
  const std::string low = number();
  const bool has_comma = accept(",");
  const std::string high = has_comma ? number() : low;
  if (!accept("}") || (low.empty() && !has_comma)) {
    go_back_to(begin);
    return emit_item("\\{");
  }
  const std::string from = low.empty() ? "0" : low;
  repeat(has_comma ? fmt::format("{{{},{}}}", from, high) : fmt::format("{{{}}}", from));
}

}  // namespace

std::string translate_python_regex(std::string_view pattern) {
  return Translator(pattern).translate();
}

// ---- search

namespace {

// Enough for any sane pattern on a layer's name. A pattern with exponential backtracking stops here
// after some hundredths of a second.
constexpr std::uint32_t kMatchLimit = 1'000'000;

std::string get_message(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

PythonRegex::PythonRegex(std::string_view pattern) : pattern_(pattern) {
  const std::string translated = translate_python_regex(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (!code) {
    raise<UsageError>("the regular expression '{}' cannot be compiled: {}", quotable(pattern),
                      get_message(error));
  }
  code_ = std::shared_ptr<const void>(code, [](const void* owned) {
    pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(owned)));
  });
}

bool PythonRegex::search(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  pcre2_set_match_limit(context.get(), kMatchLimit);
  const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                                 data.get(), context.get());
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  raise<UsageError>("the regular expression '{}' cannot be matched against '{}': {}; simplify it",
                    quotable(pattern_), quotable(text), get_message(result));
}

}  // namespace telens::config
