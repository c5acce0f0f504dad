// The `telens` command: says what a run file holds.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/base/version.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/commands/wrong_use.h"
#include "inspector_cli/terminal/interrupt.h"
#include "inspector_cli/terminal/output.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

// Exit codes: 0 fine, 1 only from commands that judge a run, 2 wrong use or bad input.
constexpr int kBadRun = 1;
constexpr int kBadInput = 2;
constexpr int kSignal = 128;  // as a shell tells of a process that a signal ended
constexpr int kReaderLeft = kSignal + SIGPIPE;

constexpr std::array kSubcommands{add_info,     add_stats,      add_plot,   add_repair, add_plan,
                                  add_features, add_new_plugin, add_ledger, add_blocks, add_whatif,
                                  add_diagnose, add_diff,       add_replay, add_report, add_bisect,
                                  add_watch,    add_serve};

int refused(std::string_view message) {
  note(message);
  return kBadInput;
}

// A line for each mistake.
int refused(const ConfigError& error) {
  fmt::print(stderr, "telens: {}\n", printable_lines(error.what()));
  return kBadInput;
}

// Adds what to do about a run file that lacks bytes.
int refused(const RecordError& error) {
  const std::string_view text = error.what();
  const bool is_cut = text.find("truncated file: ") != std::string_view::npos ||
                      text.find("truncated or damaged (only ") != std::string_view::npos;
  return refused(fmt::format(
      "{}{}", text,
      is_cut ? "; bytes are missing at its end, as of a copy that was broken off: copy it again"
             : ""));
}

// Runs what the command line asks for; returns the exit code.
int answer(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const BadRun&) {
    return kBadRun;
  } catch (const CLI::CallForHelp& request) {
    return app.exit(request);
  } catch (const CLI::CallForVersion& request) {
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return refused(wrong_use(app, error));
  }
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app("Finds where low-precision training goes wrong: reads what TELens recorded.",
               "telens");
  app.set_version_flag("--version", fmt::format("telens {}", kVersion));
  app.require_subcommand(1);
  app.footer(
      "RUN is a run's folder (<log_dir>/telens/<run id>), one of its .h5 files, or a log_dir: of "
      "several runs in it the newest (`repair` wants to be told which).\nExit codes: 0 fine, 1 "
      "only from commands that judge a run, 2 wrong use, "
      "bad input or an output that could not be written.");
  for (const auto add : kSubcommands) add(app);
  try {
    const int code = answer(app, argc, argv);
    flush_stdout();
    return code;
  } catch (const ReaderLeft&) {
    return kReaderLeft;
  } catch (const Interrupted& interrupted) {
    return kSignal + interrupted.signal;
  } catch (const std::system_error& error) {  // fmt's, of a stdout that takes no more
    if (error.code() == std::errc::broken_pipe) return kReaderLeft;
    return refused(std::ferror(stdout) != 0 ? unwritten(error.code().message()) : error.what());
  } catch (const ConfigError& error) {
    return refused(error);
  } catch (const RecordError& error) {
    return refused(error);
  } catch (const std::exception& error) {
    return refused(std::string_view(error.what()));
  }
}

}  // namespace
}  // namespace telens::cli

int main(int argc, char** argv) {
  telens::cli::hold_standard_streams();
  // A file beyond the shell's limit of its size is an output that could not be written, as any.
  std::signal(SIGXFSZ, SIG_IGN);
  return telens::cli::run(argc, argv);
}
