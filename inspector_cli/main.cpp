// The `telens` command: says what a run file holds.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <exception>

#include "inspector_cli/subcommands.h"
#include "inspector_cli/wrong_use.h"

namespace telens::cli {
namespace {

// Exit codes: 0 fine, 1 only from commands that judge a run, 2 wrong use or bad input.
constexpr int kBadRun = 1;
constexpr int kBadInput = 2;

constexpr std::array kSubcommands{add_info,     add_stats,      add_plot,   add_repair, add_plan,
                                  add_features, add_new_plugin, add_ledger, add_blocks, add_whatif};

int run(int argc, char** argv) {
  CLI::App app("Finds where low-precision training goes wrong: reads what TELens recorded.",
               "telens");
  app.set_version_flag("--version", std::string("telens ") + TELENS_VERSION);
  app.require_subcommand(1);
  app.footer(
      "RUN is a run's folder (<log_dir>/telens/<run id>), one of its .h5 files, or a log_dir: of "
      "several runs in it the newest (`repair` wants to be told which).\nExit codes: 0 fine, 1 "
      "only from commands that judge a run, 2 wrong use or "
      "bad input.");
  for (const auto add : kSubcommands) add(app);
  try {
    app.parse(argc, argv);
  } catch (const BadRun&) {
    return kBadRun;
  } catch (const CLI::CallForHelp& request) {
    return app.exit(request);
  } catch (const CLI::CallForVersion& request) {
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "telens: {}\n", wrong_use(app, error));
    return kBadInput;
  } catch (const std::exception& error) {
    fmt::print(stderr, "telens: {}\n", error.what());
    return kBadInput;
  }
  return 0;
}

}  // namespace
}  // namespace telens::cli

int main(int argc, char** argv) { return telens::cli::run(argc, argv); }
