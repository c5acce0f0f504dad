#include "hooks/session/termination_flush.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <iostream>
#include <memory>
#include <mutex>
#include <utility>

namespace telens::debug {
namespace {

// All data that the handler uses. A handler may only call async-signal-safe functions, so it writes
// a byte into a pipe that a thread reads.
int pipe_ends[2] = {-1, -1};
std::atomic<pid_t> owner{0};

// The handlers to pass the signal on to; the last of them is called. A program may install a
// handler over ours and call ours from it. Then ours permanently stays below it, with the handler
// that it originally passed the signal on to, and a later session may install ours over that
// handler again. Ours is then called recursively, by that handler, and passes the signal on to the
// previous handler in the chain.
constexpr int kMostHandlers = 8;
struct Chain {
  struct sigaction handlers[kMostHandlers] = {};
  int length = 0;
  int buried = 0;  // number of leading handlers, which stay
};

// A handler reads one chain while a session (there is one at a time) fills the other. If another
// thread interrupts a handler while a session ends and the next one begins, it may still read the
// chain that is being filled. This requires SIGTERM at a moment when a process both continues and
// starts a session.
Chain chains[2];
std::atomic<int> current_chain{0};

const Chain& chain() { return chains[current_chain.load()]; }

void replace_chain(const Chain& chain) {
  const int other = 1 - current_chain.load();
  chains[other] = chain;
  current_chain.store(other);
}

std::atomic<pthread_t> handling{};  // the thread that the handler runs on
volatile sig_atomic_t depth = 0;    // recursion depth of the handler
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
  depth = is_nested ? depth + 1 : 0;
  const Chain& handlers = chain();
  const int at = handlers.length - 1 - depth;
  const struct sigaction standard = {};
  const struct sigaction& next = at < 0 ? standard : handlers.handlers[at];
  if (!has_own_handler(next)) ends_by_default.store(true);
  // A forked child does not have the thread that flushes.
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
    if (is_nested) {
      depth = depth - 1;
    } else {
      handling.store({});
    }
  }
  errno = saved_errno;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handle;
}

bool are_the_same(const struct sigaction& a, const struct sigaction& b) {
  if ((a.sa_flags & SA_SIGINFO) != (b.sa_flags & SA_SIGINFO)) return false;
  return (a.sa_flags & SA_SIGINFO) != 0 ? a.sa_sigaction == b.sa_sigaction
                                        : a.sa_handler == b.sa_handler;
}

// Appends `action` to the chain. It is already in the chain if a program installs the same handler
// over ours in every session. Returns false if the chain is full.
bool pass_on_to(const struct sigaction& action) {
  Chain next = chain();
  struct sigaction* const end = next.handlers + next.buried;
  struct sigaction* const known = std::find_if(
      next.handlers, end, [&](const struct sigaction& each) { return are_the_same(each, action); });
  if (known != end) {
    std::rotate(known, known + 1, end);
    next.length = next.buried;
  } else if (next.buried < kMostHandlers) {
    *end = action;
    next.length = next.buried + 1;
  } else {
    return false;
  }
  replace_chain(next);
  return true;
}

}  // namespace

TerminationFlush::TerminationFlush(std::function<void()> flush,
                                   std::chrono::milliseconds longest_flush)
    : flush_(std::move(flush)), longest_flush_(longest_flush) {
  struct sigaction current = {};
  sigaction(SIGTERM, nullptr, &current);
  const bool ignored = !(current.sa_flags & SA_SIGINFO) && current.sa_handler == SIG_IGN;
  if (ignored || pipe(pipe_ends) != 0) return;
  // Ours is already installed in a forked child, and if a program restored it.
  if (!is_ours(current) && !pass_on_to(current)) {
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    std::cerr << "telens: SIGTERM will not save the records of this session: the program has "
                 "replaced the handler of debug sessions too often, by more than "
              << kMostHandlers << " different ones; install them before debug.initialize\n";
    return;
  }
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
  Chain left = chain();
  if (is_ours(current)) {
    sigaction(SIGTERM, &left.handlers[left.length - 1], nullptr);
    // Only handlers that were installed over ours still call it.
    left.length = left.buried > 0 ? left.buried : 1;
  } else {
    left.buried = left.length;
  }
  replace_chain(left);
  // A program that replaced our handler may call it from its own: from now on ours only passes the
  // signal on.
  owner.store(0);
  if (write(pipe_ends[1], &kStop, 1) == 1) {
    watcher_.join();
  } else {
    watcher_.detach();
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

void TerminationFlush::flush_in_time() const {
  struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_done = false;
  };
  const auto progress = std::make_shared<Progress>();
  std::thread([flush = flush_, progress] {
    flush();
    const std::lock_guard lock(progress->mutex);
    progress->is_done = true;
    progress->changed.notify_all();
  }).detach();
  std::unique_lock lock(progress->mutex);
  if (progress->changed.wait_for(lock, longest_flush_, [&] { return progress->is_done; })) return;
  std::cerr << "telens: SIGTERM: the last records are not on disk after "
            << std::chrono::duration<double>(longest_flush_).count()
            << " s, and the process ends; check the disk of log_dir\n";
}

void TerminationFlush::watch() {
  // A program's handlers belong to its own threads; on this thread they would interrupt the read.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  char byte = kStop;
  while (read(pipe_ends[0], &byte, 1) == 1 && byte == kTerminate) {
    flush_in_time();
    if (ends_by_default.load()) end_by_default();
  }
}

}  // namespace telens::debug
