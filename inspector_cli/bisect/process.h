// A program that is run to its end, within a time.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace telens::cli {

struct ProcessOptions {
  std::vector<std::string> command = {};
  std::vector<std::pair<std::string, std::string>> environment = {};  // besides the caller's
  std::string output = {};                       // the file to which stdout and stderr are appended
  std::optional<double> timeout = std::nullopt;  // seconds
};

struct ProcessEnd {
  int exit_code = 0;
  int signal = 0;  // that ended it; 0: none
  bool timed_out = false;
  double seconds = 0;

  bool is_success() const { return exit_code == 0 && signal == 0 && !timed_out; }
  std::string text() const;  // "exit code 3"
};

// The program, and whatever it starts, is a process group of its own with an empty stdin. The group
// is ended at the timeout, and where the caller is interrupted: politely, then after five seconds
// for good. Throws UsageError where it cannot be started, Interrupted.
ProcessEnd run_process(const ProcessOptions& options);

}  // namespace telens::cli
