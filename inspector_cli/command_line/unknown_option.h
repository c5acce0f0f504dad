// An option that a command line has and the program has not, with the one that was meant.
//
// A header alone: each program that parses a command line has CLI11's classes in one source
// already, and they cost every further one five seconds of compilation.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hooks/config/suggestions.h"

namespace telens::cli {

// "--format", "-f", ...
inline std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// The first option that the parser could not place, "--fromat" of "--fromat=csv"; nullopt: none.
inline std::optional<std::string> left_over_option(const CLI::App& app) {
  for (const std::string& argument : app.remaining(/*recurse=*/true)) {
    if (argument.starts_with('-')) return argument.substr(0, argument.find('='));
  }
  return std::nullopt;
}

// "there is no option --fromat (did you mean '--format'?)" of the command, which is the app itself
// or its subcommand; nullopt where no option is left over.
inline std::optional<std::string> unknown_option(const CLI::App& app, const CLI::App& command) {
  const std::optional<std::string> name = left_over_option(app);
  if (!name) return std::nullopt;
  return fmt::format("there is no option {}{}", *name,
                     config::suggestion(*name, option_names(command)));
}

}  // namespace telens::cli
