// Collects the mistakes of one configuration, so that a person sees all of them at once, and what
// is legal but does nothing.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "hooks/config/value.h"

namespace telens::config {

class ErrorList {
 public:
  // While it lives, every message begins with this context ("section 'a', feature 'FakeQuant'").
  class Context {
   public:
    Context(ErrorList& errors, std::string text) : errors_(errors) {
      errors_.context_.push_back(std::move(text));
    }
    ~Context() { errors_.context_.pop_back(); }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

   private:
    ErrorList& errors_;
  };

  template <typename... Args>
  void add(const Location& where, fmt::format_string<Args...> format, Args&&... args) {
    add_to(errors_, where, fmt::format(format, std::forward<Args>(args)...));
  }

  // Adds a warning: the contract allows it, but it is hardly meant. Loading goes on.
  template <typename... Args>
  void warn(const Location& where, fmt::format_string<Args...> format, Args&&... args) {
    add_to(warnings_, where, fmt::format(format, std::forward<Args>(args)...));
  }

  bool empty() const { return errors_.empty(); }
  std::size_t size() const { return errors_.size(); }

  // All errors in the order of the text: "file:line:column: context: message".
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

  void add_to(std::vector<Entry>& entries, const Location& where, std::string message);
  static std::vector<std::string> split_lines(std::vector<Entry> entries);

  std::vector<std::string> context_;
  std::vector<Entry> errors_;
  std::vector<Entry> warnings_;
};

}  // namespace telens::config
