// Collects the errors of a configuration, so that they are reported together, and warnings about
// legal parts without effect. The list is bounded for any size of text.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "hooks/config/value.h"

namespace telens::config {

class ErrorList {
 public:
  // The maximum number of errors, and of warnings, that are listed.
  static constexpr std::size_t kListed = 20;

  // During its lifetime, every message begins with this context ("section 'a', feature
  // 'FakeQuant'").
  class Context {
   public:
    Context(ErrorList& errors, const std::string& text) : errors_(errors) {
      errors_.context_.push_back(quotable(text));
    }
    ~Context() { errors_.context_.pop_back(); }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

   private:
    ErrorList& errors_;
  };

  // Adds an error. A named std::string argument is text from the configuration and is quoted by
  // quotable(). A temporary was built for the message and is inserted completely.
  template <typename... Args>
  void add(const Location& where, fmt::format_string<Args...> format, Args&&... args) {
    add_to(errors_, where, message<Args...>(format, args...));
  }

  // Adds a warning: the contract allows it, but it is probably not intended. Loading continues.
  template <typename... Args>
  void warn(const Location& where, fmt::format_string<Args...> format, Args&&... args) {
    add_to(warnings_, where, message<Args...>(format, args...));
  }

  // Returns the text of such a message.
  template <typename... Args>
  static std::string message(fmt::format_string<Args...> format,
                             std::remove_reference_t<Args>&... args) {
    return format_all(format, quoted<Args>(args)...);
  }

  // Returns true if another error can still be listed. Callers skip expensive explanations if not.
  bool has_room() const { return size() < kListed; }

  bool empty() const { return size() == 0; }
  std::size_t size() const { return errors_.known.size(); }

  // Returns the first errors in text order: "file:line:column: context: message". If there are more
  // than kListed, a last line gives the number of the others.
  std::vector<std::string> lines() const;
  std::vector<std::string> warning_lines() const;
  std::string text() const;  // one per line

  // Throws ConfigError with text() if there is any error.
  void raise_if_any() const;

 private:
  struct Entry {
    Location where;
    std::string message;
  };

  struct Entries {
    std::vector<Entry> kept;                // the first added ones
    std::unordered_set<std::size_t> known;  // hashes of the entries
  };

  template <typename Arg>
  static decltype(auto) quoted(std::remove_reference_t<Arg>& argument) {
    constexpr bool is_text =
        std::is_lvalue_reference_v<Arg> && std::is_same_v<std::remove_cvref_t<Arg>, std::string>;
    if constexpr (is_text) {
      return quotable(argument);
    } else {
      return (argument);
    }
  }

  template <typename... Args>
  static std::string format_all(fmt::string_view format, Args&&... args) {
    return fmt::vformat(format, fmt::make_format_args(args...));
  }

  void add_to(Entries& entries, const Location& where, std::string message);
  static std::vector<std::string> split_lines(const Entries& entries);

  std::vector<std::string> context_;
  Entries errors_;
  Entries warnings_;
};

}  // namespace telens::config
