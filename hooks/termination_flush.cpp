#include "hooks/termination_flush.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

namespace telens::debug {
namespace {

// All that the handler touches. A handler may only do what is async-signal-safe, so it writes a
// byte into a pipe that a thread reads.
int pipe_ends[2] = {-1, -1};
std::atomic<pid_t> owner{0};
struct sigaction previous = {};

constexpr char kTerminate = 't';
constexpr char kStop = 's';

bool has_own_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void end_by_default() {
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(SIGTERM, &standard, nullptr);
  kill(getpid(), SIGTERM);
}

void handle(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  // A forked child has no thread that would flush.
  const bool flushes = owner.load() == getpid() && write(pipe_ends[1], &kTerminate, 1) == 1;
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(number, info, context);
  } else if (has_own_handler(previous)) {
    previous.sa_handler(number);
  } else if (!flushes) {
    end_by_default();
  }
  errno = saved_errno;
}

}  // namespace

TerminationFlush::TerminationFlush(std::function<void()> flush) : flush_(std::move(flush)) {
  sigaction(SIGTERM, nullptr, &previous);
  const bool ignored = !(previous.sa_flags & SA_SIGINFO) && previous.sa_handler == SIG_IGN;
  if (ignored || pipe(pipe_ends) != 0) return;
  owner.store(getpid());
  watcher_ = std::thread([this] { watch(); });
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
}

TerminationFlush::~TerminationFlush() {
  if (!watcher_.joinable()) return;
  struct sigaction current = {};
  sigaction(SIGTERM, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) && current.sa_sigaction == handle) {
    sigaction(SIGTERM, &previous, nullptr);
  }
  // A program that replaced our handler may have kept it to call it: from now on it only passes on.
  owner.store(0);
  if (write(pipe_ends[1], &kStop, 1) == 1) {
    watcher_.join();
  } else {
    watcher_.detach();
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

void TerminationFlush::watch() {
  char byte = kStop;
  while (read(pipe_ends[0], &byte, 1) == 1 && byte == kTerminate) {
    flush_();
    if (!has_own_handler(previous)) end_by_default();
  }
}

}  // namespace telens::debug
