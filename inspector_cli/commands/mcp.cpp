// telens mcp: answers the questions of agents about runs over the Model Context Protocol. The
// server is python/telens/mcp_server.py, which CMake embeds: it needs neither torch nor the package
// telens, and calls this command for each question.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "inspector_cli/commands/embedded_files.h"
#include "inspector_cli/commands/options.h"
#include "inspector_cli/commands/python.h"
#include "inspector_cli/commands/subcommands.h"

namespace telens::cli {
namespace {

constexpr double kLongestTimeout = 3600;         // seconds
constexpr std::int64_t kFewestCharacters = 500;  // room for the note about cut lists

struct McpOptions {
  double timeout = 60;               // seconds
  std::int64_t characters = 40'000;  // about 10000 tokens
};

void run_mcp(const McpOptions& options) {
  run_python("mcp", kMcpServer,
             {fmt::format("--command={}", command_file().string()),
              fmt::format("--timeout={}", options.timeout),
              fmt::format("--max-characters={}", options.characters)});
}

}  // namespace

void add_mcp(CLI::App& app) {
  auto options = std::make_shared<McpOptions>();
  CLI::App* command = app.add_subcommand(
      "mcp",
      "Answer an agent's questions about runs (Model Context Protocol).\n\n"
      "Serves the questions of the other commands as read-only tools on stdin and stdout, until "
      "stdin is closed. Runs in a Python with the package mcp, which TELENS_PYTHON may name "
      "(docs/agents.md).");
  command
      ->add_option("--timeout", options->timeout,
                   "Seconds after which a question is stopped (default: 60)")
      ->type_name("SECONDS")
      ->check(seconds_up_to(kLongestTimeout));
  command
      ->add_option("--max-characters", options->characters,
                   "The longest answer; longer lists are cut (default: 40000)")
      ->type_name("N")
      ->check(whole_number_from(kFewestCharacters));
  command->footer(
      "Example:\n"
      "  telens mcp --timeout 300");
  command->callback([options] { run_mcp(*options); });
}

}  // namespace telens::cli
