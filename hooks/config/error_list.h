// Collects the errors of one configuration, so that a person sees them together, and warnings about
// what is legal but has no effect. What it lists is bounded, whatever the size of the text.
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
  // The most errors, and the most warnings, that are listed.
  static constexpr std::size_t kListed = 20;

  // While it lives, every message begins with this context ("section 'a', feature 'FakeQuant'").
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

  // Adds an error. An argument that is a named std::string is a text of the configuration: it is
  // quoted by quotable(). A temporary was built for the message and is inserted whole.
  template <typename... Args>
  void add(const Location& where, fmt::format_string<Args...> format, Args&&... args) {
    add_to(errors_, where, message<Args...>(format, args...));
  }

  // Adds a warning: the contract allows it, but it is hardly meant. Loading continues.
  template <typename... Args>
  void warn(const Location& where, fmt::format_string<Args...> format, Args&&... args) {
    add_to(warnings_, where, message<Args...>(format, args...));
  }

  // The text of such a message.
  template <typename... Args>
  static std::string message(fmt::format_string<Args...> format,
                             std::remove_reference_t<Args>&... args) {
    return format_all(format, quoted<Args>(args)...);
  }

  // Whether another error can still be listed: what only helps its reader may be expensive.
  bool has_room() const { return size() < kListed; }

  bool empty() const { return size() == 0; }
  std::size_t size() const { return errors_.known.size(); }

  // The first errors in the order of the text: "file:line:column: context: message". If there are
  // more than kListed, a last line gives the number of the others.
  std::vector<std::string> lines() const;
  std::vector<std::string> warning_lines() const;
  std::string text() const;  // one a line

  // Throws ConfigError with text() if there is any error.
  void raise_if_any() const;

 private:
  struct Entry {
    Location where;
    std::string message;
  };

  struct Entries {
    std::vector<Entry> kept;                // the first ones that were added
    std::unordered_set<std::size_t> known;  // hashes of all
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
