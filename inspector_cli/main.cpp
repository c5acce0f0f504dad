// The `telens` command: inspects run files and explains problems.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/commands/usage.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

// Exit codes: 0 success, 1 problems found in a run, 2 usage error, bad input or failed output.
constexpr int kFindings = 1;
constexpr int kError = 2;
constexpr int kSignal = 128;  // plus the signal, as shells report it
constexpr int kBrokenPipe = kSignal + SIGPIPE;

struct Command {
  const char* group;
  void (*add)(CLI::App& app);
};

constexpr const char* kInspect = "Inspect a run";
constexpr const char* kExplain = "Explain a problem";
constexpr const char* kPrepare = "Prepare and maintain";

// All commands, in the order of `telens --help`.
constexpr std::array kCommands{
    Command{kInspect, add_info},       Command{kInspect, add_stats},
    Command{kInspect, add_plot},       Command{kInspect, add_report},
    Command{kInspect, add_watch},      Command{kInspect, add_serve},
    Command{kInspect, add_mcp},        Command{kExplain, add_diagnose},
    Command{kExplain, add_advise},     Command{kExplain, add_diff},
    Command{kExplain, add_ledger},     Command{kExplain, add_blocks},
    Command{kExplain, add_whatif},     Command{kExplain, add_replay},
    Command{kExplain, add_bisect},     Command{kPrepare, add_run_training},
    Command{kPrepare, add_plan},       Command{kPrepare, add_features},
    Command{kPrepare, add_new_plugin}, Command{kPrepare, add_repair},
    Command{kPrepare, add_export}};

int report_error(std::string_view message) {
  note(message);
  return kError;
}

// Prints one line per mistake in a config.
int report_error(const ConfigError& error) {
  fmt::print(stderr, "telens: {}\n", printable_lines(error.what()));
  return kError;
}

// Adds a hint if the run file is truncated.
int report_error(const RecordError& error) {
  return report_error(fmt::format(
      "{}{}", error.what(),
      error.is_truncated()
          ? "; bytes are missing at its end, as after an interrupted copy: copy it again"
          : ""));
}

// Parses the command line and runs the subcommand. Returns the exit code.
int parse_and_run(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const FindingsReported&) {
    return kFindings;
  } catch (const CLI::CallForHelp& request) {
    return app.exit(request);
  } catch (const CLI::CallForVersion& request) {
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return report_error(usage_error(app, error));
  }
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app("Find problems of low-precision training in the records of TELens.", "telens");
  app.formatter_fn([](const CLI::App* shown, const std::string& name, CLI::AppFormatMode /*mode*/) {
    return help_text(*shown, name);
  });
  app.set_help_flag("-h,--help", "Print this help");
  app.set_version_flag("--version", fmt::format("telens {}", kVersion), "Print the version");
  app.require_subcommand(1);
  for (const Command& command : kCommands) {
    command.add(app);
    app.get_subcommands({}).back()->group(command.group);
  }
  app.footer(
      "RUN is a run's folder (LOG_DIR/telens/RUN_ID), one of its .h5 files, or a log_dir, which "
      "means its newest run.\n"
      "Exit codes: 0 no problem, 1 problem found, 2 wrong use, bad input or failed output.\n"
      "`telens COMMAND --help` shows a command's options and examples.");
  try {
    const int code = parse_and_run(app, argc, argv);
    flush_stdout();
    return code;
  } catch (const BrokenPipe&) {
    return kBrokenPipe;
  } catch (const Interrupted& interrupted) {
    return kSignal + interrupted.signal;
  } catch (const std::system_error& error) {  // thrown by fmt if stdout cannot be written
    if (error.code() == std::errc::broken_pipe) return kBrokenPipe;
    return report_error(std::ferror(stdout) != 0 ? unwritten(error.code().message())
                                                 : error.what());
  } catch (const ConfigError& error) {
    return report_error(error);
  } catch (const RecordError& error) {
    return report_error(error);
  } catch (const std::bad_alloc&) {
    return report_error("out of memory; provide more memory or less input");
  } catch (const std::exception& error) {
    return report_error(std::string_view(error.what()));
  }
}

}  // namespace
}  // namespace telens::cli

int main(int argc, char** argv) {
  telens::cli::hold_standard_streams();
  // Writing beyond the file size limit then fails with an error instead of a signal.
  std::signal(SIGXFSZ, SIG_IGN);
  return telens::cli::run(argc, argv);
}
