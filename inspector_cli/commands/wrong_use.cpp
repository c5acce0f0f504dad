#include "inspector_cli/commands/wrong_use.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <vector>

#include "hooks/config/suggestions.h"
#include "inspector_cli/command_line/unknown_option.h"

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

// An option that the command has is left over only where it stands before the command.
std::optional<std::string> about_options(const CLI::App& app, const CLI::App& command) {
  const std::optional<std::string> name = left_over_option(app);
  if (!name) return std::nullopt;
  const std::vector<std::string> known = option_names(command);
  if (std::ranges::find(known, *name) == known.end()) return unknown_option(app, command);
  return fmt::format("{0} stands before the subcommand; write it behind: telens {1} ... {0}", *name,
                     command.get_name());
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

}  // namespace

std::string wrong_use(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen(app);
  if (&command == &app) return fmt::format("{}; `telens --help` explains", about_subcommands(app));
  return fmt::format("{0}: {1}; `telens {0} --help` explains", command.get_name(),
                     about_options(app, command).value_or(error.what()));
}

}  // namespace telens::cli
