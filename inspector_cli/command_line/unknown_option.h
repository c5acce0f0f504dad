// Describes unknown options of a command line and suggests the nearest option.
//
// Header-only: CLI11 costs five seconds of compilation per source, and every program that parses a
// command line already has one source that includes it.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hooks/config/suggestions.h"

namespace telens::cli {

// Returns the options of a command: "--format", "-f", ...
inline std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// Returns the first unknown option, "--fromat" for "--fromat=csv", or nullopt if there is none.
inline std::optional<std::string> left_over_option(const CLI::App& app) {
  for (const std::string& argument : app.remaining(/*recurse=*/true)) {
    if (argument.starts_with('-')) return argument.substr(0, argument.find('='));
  }
  return std::nullopt;
}

// Returns "unknown option --fromat (did you mean '--format'?)", or nullopt if all options are
// known. `command` is the app or its parsed subcommand.
inline std::optional<std::string> unknown_option(const CLI::App& app, const CLI::App& command) {
  const std::optional<std::string> name = left_over_option(app);
  if (!name) return std::nullopt;
  return fmt::format("unknown option {}{}", *name,
                     config::suggestion(*name, option_names(command)));
}

}  // namespace telens::cli
