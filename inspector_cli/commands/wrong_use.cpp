#include "inspector_cli/commands/wrong_use.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "hooks/config/suggestions.h"

namespace telens::cli {
namespace {

std::vector<std::string> list_subcommands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands({}))
    names.push_back(subcommand->get_name());
  return names;
}

// The subcommand that a command line had, or the app itself.
const CLI::App& chosen(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed.front();
}

std::vector<std::string> get_options(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// An option that the command has is left over only where it stands before the command.
std::string about_option(const std::string& name, const CLI::App& command) {
  const std::vector<std::string> known = get_options(command);
  if (std::ranges::find(known, name) != known.end()) {
    return fmt::format("{0} stands before the subcommand; write it behind: telens {1} ... {0}",
                       name, command.get_name());
  }
  return fmt::format("there is no option {}{}", name, config::suggestion(name, known));
}

std::string about_subcommands(const CLI::App& app) {
  const std::vector<std::string> names = list_subcommands(app);
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty() || rest.front().starts_with('-')) {
    return fmt::format("a subcommand is missing; expected one of {}", config::quoted_list(names));
  }
  return fmt::format("there is no subcommand '{}'{}; expected one of {}", rest.front(),
                     config::suggestion(rest.front(), names), config::quoted_list(names));
}

// "--fromat=csv" -> "--fromat"
std::string name_in(const std::string& argument) { return argument.substr(0, argument.find('=')); }

}  // namespace

std::string wrong_use(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen(app);
  if (&command == &app) return fmt::format("{}; `telens --help` explains", about_subcommands(app));
  std::string mistake = error.what();
  for (const std::string& argument : app.remaining(true)) {
    if (!argument.starts_with('-')) continue;
    mistake = about_option(name_in(argument), command);
    break;
  }
  return fmt::format("{0}: {1}; `telens {0} --help` explains", command.get_name(), mistake);
}

}  // namespace telens::cli
