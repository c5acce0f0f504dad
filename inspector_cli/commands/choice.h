// An option that takes one of several words.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

#include "hooks/config/suggestions.h"

namespace telens::cli {

// Words in any case. CLI11's own transformer would name a wrong word beside the values that its
// table maps to, which for an enum are no words.
template <typename Value>
void add_choice(CLI::App& command, const char* name, Value& value,
                const std::map<std::string, Value>& choices, const std::string& doc) {
  std::vector<std::string> words;
  for (const auto& [word, ignored] : choices) words.push_back(word);
  const auto choose = [=, &value](const std::string& given) {
    for (const auto& [word, each] : choices) {
      if (CLI::detail::to_lower(word) != CLI::detail::to_lower(given)) continue;
      value = each;
      return;
    }
    throw CLI::ValidationError(
        name, fmt::format("expected one of {}, not '{}'{}", config::quoted_list(words), given,
                          config::suggestion(given, words)));
  };
  command.add_option_function<std::string>(name, choose, doc)
      ->type_name(fmt::format("{{{}}}", fmt::join(words, ",")));
}

}  // namespace telens::cli
