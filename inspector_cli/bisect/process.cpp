#include "inspector_cli/bisect/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/base/error.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPoll = std::chrono::milliseconds(5);
constexpr auto kGrace = std::chrono::seconds(5);
constexpr mode_t kFileMode = 0666;  // less the umask

// Executes the program in the child. Writes errno to `failure` if it cannot be executed.
[[noreturn]] void execute(const ProcessOptions& options, char* const* arguments, int failure,
                          pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(EXIT_FAILURE);
  std::signal(SIGXFSZ, SIG_DFL);  // exec resets the handlers of InterruptWatch
  const int input = ::open("/dev/null", O_RDONLY);
  const int output = ::open(options.output.c_str(), O_WRONLY | O_CREAT | O_APPEND, kFileMode);
  if (input >= 0 && output >= 0 && ::dup2(input, STDIN_FILENO) >= 0 &&
      ::dup2(output, STDOUT_FILENO) >= 0 && ::dup2(output, STDERR_FILENO) >= 0) {
    for (const auto& [name, value] : options.environment) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
    ::execvp(arguments[0], arguments);
  }
  const int error = errno;
  [[maybe_unused]] const auto written = ::write(failure, &error, sizeof error);
  ::_exit(EXIT_FAILURE);
}

// Starts the program. Returns the id of its process group.
pid_t start(const ProcessOptions& options) {
  std::vector<char*> arguments;
  for (const std::string& each : options.command) {
    arguments.push_back(const_cast<char*>(each.c_str()));
  }
  arguments.push_back(nullptr);
  std::array<int, 2> failure{};
  if (::pipe2(failure.data(), O_CLOEXEC) != 0) {
    raise<UsageError>("cannot start {}: {}", options.command[0], std::strerror(errno));
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) execute(options, arguments.data(), failure[1], parent);
  const int fork_error = child < 0 ? errno : 0;
  ::close(failure[1]);
  int error = fork_error;
  if (child > 0) {
    ::setpgid(child, child);  // parent and child both call it, because either may run first
    ssize_t got = 0;
    while ((got = ::read(failure[0], &error, sizeof error)) < 0 && errno == EINTR) {
    }
    if (got <= 0) error = 0;
  }
  ::close(failure[0]);
  if (error == 0) return child;
  if (child > 0) ::waitpid(child, nullptr, 0);
  raise<UsageError>(
      "cannot start '{}': {}; expected a program with its arguments, such as `-- python train.py`; "
      "for a shell command write `-- sh -c '...'`",
      options.command[0], std::strerror(error));
}

// Returns true if the child has ended.
bool has_ended(pid_t child, int& status) {
  const pid_t ended = ::waitpid(child, &status, WNOHANG);
  return ended == child || (ended < 0 && errno != EINTR);
}

bool ends_by(pid_t child, int& status, Clock::time_point last) {
  while (!has_ended(child, status)) {
    if (Clock::now() >= last) return false;
    std::this_thread::sleep_for(kPoll);
  }
  return true;
}

void end_group(pid_t child, int& status, int signal) {
  ::kill(-child, signal);
  const bool ended = ends_by(child, status, Clock::now() + kGrace);
  ::kill(-child, SIGKILL);  // also ends the remaining processes of the group
  if (!ended) ends_by(child, status, Clock::time_point::max());
}

}  // namespace

std::string ProcessEnd::text() const {
  if (timed_out) return fmt::format("timed out after {:.3g} s", seconds);
  if (signal != 0) return fmt::format("signal {} ({})", signal, ::strsignal(signal));
  return fmt::format("exit code {}", exit_code);
}

ProcessEnd run_process(const ProcessOptions& options) {
  throw_if_interrupted();
  const Clock::time_point begin = Clock::now();
  const pid_t child = start(options);
  ProcessEnd end;
  int status = 0;
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  while (!has_ended(child, status)) {
    if (const int signal = interrupting_signal(); signal != 0) {
      end_group(child, status, signal);
      throw_if_interrupted();
    }
    if (options.timeout && seconds() > *options.timeout) {
      end_group(child, status, SIGTERM);
      end.timed_out = true;
      break;
    }
    std::this_thread::sleep_for(kPoll);
  }
  // Ctrl-C may have ended the program before this process saw the signal.
  throw_if_interrupted();
  end.seconds = seconds();
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  return end;
}

}  // namespace telens::cli
