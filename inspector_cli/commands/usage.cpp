#include "inspector_cli/commands/usage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "hooks/config/suggestions.h"
#include "inspector_cli/command_line/unknown_option.h"
#include "inspector_cli/terminal/text.h"

namespace telens::cli {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kOptionColumn = 24;   // where descriptions of options begin
constexpr std::size_t kCommandColumn = 14;  // where sentences about commands begin

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string wrap_lines(const std::string& text) {
  std::string wrapped_text;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (line.empty() || line.front() == ' ') {
      wrapped_text += line + '\n';
    } else {
      for (const std::string& part : wrapped_at_blanks(line, kWidth)) wrapped_text += part + '\n';
    }
    begin = end + 1;
  }
  return wrapped_text;
}

// Returns "  name      text" with the text wrapped in its column. A name that is too long for its
// column gets a separate line.
std::string make_entry(const std::string& name, const std::string& text, std::size_t column) {
  std::string line = "  " + name;
  std::string lines;
  if (line.size() + 2 > column) {
    lines = line + '\n';
    line.clear();
  }
  for (const std::string& part : wrapped_at_blanks(text, kWidth - column)) {
    lines += fmt::format("{:<{}}{}\n", line, column, part);
    line.clear();
  }
  return lines;
}

std::string join_names(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string make_name(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(/*positional=*/true);
  std::string name =
      option.get_snames().empty() ? "" : fmt::format("-{}, ", option.get_snames()[0]);
  name += "--" + option.get_lnames().at(0);
  const bool has_value = option.get_items_expected_max() > 0;
  return has_value ? fmt::format("{} {}", name, option.get_type_name()) : name;
}

std::string describe_option(const CLI::Option& option) {
  std::string text = option.get_description();
  if (option.get_required() && !option.get_positional()) text += " (required)";
  if (!option.get_default_str().empty()) {
    text += fmt::format(" (default: {})", option.get_default_str());
  }
  const auto excluded = option.get_excludes();
  if (!excluded.empty()) text += fmt::format(" (not with {})", join_names(excluded));
  return text;
}

std::string list_options(const CLI::App& app, bool positional) {
  std::string lines;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional() != positional) continue;
    lines += make_entry(make_name(*option), describe_option(*option), kOptionColumn);
  }
  if (lines.empty()) return lines;
  return fmt::format("\n{}:\n{}", positional ? "Arguments" : "Options", lines);
}

// Lists the commands by group, in the order of a group's first command.
std::string list_commands(const CLI::App& app) {
  const auto commands = app.get_subcommands({});
  std::vector<std::string> groups;
  for (const CLI::App* command : commands) {
    if (std::ranges::find(groups, command->get_group()) == groups.end()) {
      groups.push_back(command->get_group());
    }
  }
  std::string lines;
  for (const std::string& group : groups) {
    lines += fmt::format("\n{}:\n", group);
    for (const CLI::App* command : commands) {
      if (command->get_group() != group) continue;
      lines +=
          make_entry(command->get_name(), first_line(command->get_description()), kCommandColumn);
    }
  }
  return lines;
}

std::string usage_line(const CLI::App& app, const std::string& name) {
  if (!app.get_subcommands({}).empty()) return fmt::format("Usage: {} COMMAND [OPTIONS]\n", name);
  std::string line = fmt::format("Usage: {} [OPTIONS]", name);
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::string argument = option->get_name(/*positional=*/true);
    line += option->get_required() ? " " + argument : fmt::format(" [{}]", argument);
  }
  return line + '\n';
}

std::vector<std::string> list_subcommands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand : app.get_subcommands({}))
    names.push_back(subcommand->get_name());
  return names;
}

// Returns the parsed subcommand, or the app itself if there is none.
const CLI::App& chosen(const CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : *parsed.front();
}

// Describes the first unknown option. An option that the subcommand has is unknown only if it is
// before the subcommand.
std::optional<std::string> about_options(const CLI::App& app, const CLI::App& command) {
  const std::optional<std::string> name = left_over_option(app);
  if (!name) return std::nullopt;
  const std::vector<std::string> known = option_names(command);
  if (std::ranges::find(known, *name) == known.end()) return unknown_option(app, command);
  return fmt::format("{0} must follow the subcommand: telens {1} ... {0}", *name,
                     command.get_name());
}

std::string about_subcommands(const CLI::App& app) {
  const std::vector<std::string> names = list_subcommands(app);
  const std::vector<std::string> rest = app.remaining();
  if (rest.empty() || rest.front().starts_with('-')) {
    return fmt::format("a subcommand is missing; expected one of {}", config::quoted_list(names));
  }
  return fmt::format("unknown subcommand '{}'{}; expected one of {}", rest.front(),
                     config::suggestion(rest.front(), names), config::quoted_list(names));
}

}  // namespace

std::string help_text(const CLI::App& app, const std::string& name) {
  std::string text = wrap_lines(app.get_description()) + '\n' + usage_line(app, name) +
                     list_commands(app) + list_options(app, true) + list_options(app, false);
  if (const std::string footer = app.get_footer(); !footer.empty()) {
    text += '\n' + wrap_lines(footer);
  }
  return text;
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = chosen(app);
  if (&command == &app) return fmt::format("{}; see `telens --help`", about_subcommands(app));
  return fmt::format("{0}: {1}; see `telens {0} --help`", command.get_name(),
                     about_options(app, command).value_or(error.what()));
}

}  // namespace telens::cli
