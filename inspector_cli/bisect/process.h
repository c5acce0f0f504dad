// Runs a program to its end, with a timeout.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace telens::cli {

struct ProcessOptions {
  std::vector<std::string> command = {};
  std::vector<std::pair<std::string, std::string>> environment = {};  // in addition to the caller's
  std::string output = {};                       // a file; stdout and stderr are appended
  std::optional<double> timeout = std::nullopt;  // seconds
};

struct ProcessEnd {
  int exit_code = 0;
  int signal = 0;  // the signal that ended it, or 0
  bool timed_out = false;
  double seconds = 0;

  bool is_success() const { return exit_code == 0 && signal == 0 && !timed_out; }
  std::string text() const;  // "exit code 3"
};

// Runs the program in a new process group with empty stdin. On a timeout or an interrupt, ends the
// group with SIGTERM or the received signal, and after five seconds with SIGKILL. Throws UsageError
// if the program cannot be started, and Interrupted if the caller is interrupted.
ProcessEnd run_process(const ProcessOptions& options);

}  // namespace telens::cli
