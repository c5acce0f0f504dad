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
struct sigaction previous = {};  // whom the handler passes the signal on to

// A program may put a handler of its own over ours and call ours from it, and a later session may
// put ours over that. Then ours is called from within itself, by that handler, and passes the
// signal on to whom it passed it on to at first.
struct sigaction buried = {};
volatile sig_atomic_t is_buried = 0;
std::atomic<pthread_t> handling{};  // the thread that the handler runs on
std::atomic<bool> ends_by_default{false};

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
  const bool is_nested = handling.load() == pthread_self();
  const struct sigaction& next = is_nested ? buried : previous;
  if (!has_own_handler(next)) ends_by_default.store(true);
  // A forked child has no thread that would flush.
  const bool flushes = owner.load() == getpid() && write(pipe_ends[1], &kTerminate, 1) == 1;
  if (!has_own_handler(next)) {
    if (!flushes) end_by_default();
  } else {
    if (!is_nested) handling.store(pthread_self());
    if (next.sa_flags & SA_SIGINFO) {
      next.sa_sigaction(number, info, context);
    } else {
      next.sa_handler(number);
    }
    if (!is_nested) handling.store({});
  }
  errno = saved_errno;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handle;
}

}  // namespace

TerminationFlush::TerminationFlush(std::function<void()> flush) : flush_(std::move(flush)) {
  struct sigaction current = {};
  sigaction(SIGTERM, nullptr, &current);
  // Ours is there already in a forked child, and where a program put it back.
  if (!is_ours(current)) previous = current;
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
  if (is_ours(current)) {
    sigaction(SIGTERM, &previous, nullptr);
  } else if (!is_buried) {
    buried = previous;
    is_buried = 1;
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
  // A program's handlers belong to its own threads; here they would interrupt the read.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  char byte = kStop;
  while (read(pipe_ends[0], &byte, 1) == 1 && byte == kTerminate) {
    flush_();
    if (ends_by_default.load()) end_by_default();
  }
}

}  // namespace telens::debug
