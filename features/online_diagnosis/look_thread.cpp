#include "features/online_diagnosis/look_thread.h"

#include <pthread.h>

#include <csignal>
#include <utility>

namespace telens::features {

using Clock = std::chrono::steady_clock;

struct LookThread::Shared {
  Shared(Look of, double part) : look(std::move(of)), share(part) {}

  const Look look;
  const double share;

  std::mutex mutex;  // guards the members below
  std::condition_variable changed;
  std::int64_t last = -1;    // the iteration of the newest request
  std::uint64_t asked = 0;   // number of requests
  std::uint64_t urgent = 0;  // the newest request that does not wait for the pause
  std::uint64_t done = 0;    // the newest fulfilled request
  std::thread::id thread;    // the thread that looks
  Clock::time_point rests_until = Clock::time_point::min();
  bool ends = false;
  bool has_ended = false;

  void run();
  bool wait_for_work(std::unique_lock<std::mutex>& lock);
};

namespace {

// Signals must reach the training's threads.
void block_all_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

// Returns false if the thread must end.
bool LookThread::Shared::wait_for_work(std::unique_lock<std::mutex>& lock) {
  while (!ends && urgent <= done) {
    if (asked == done) {
      changed.wait(lock);
    } else if (Clock::now() >= rests_until) {
      break;
    } else {
      changed.wait_until(lock, rests_until);
    }
  }
  return !ends;
}

void LookThread::Shared::run() {
  block_all_signals();
  pthread_setname_np(pthread_self(), "telens-diagnose");
  std::unique_lock lock(mutex);
  while (wait_for_work(lock)) {
    const std::uint64_t request = asked;
    const std::int64_t up_to = last;
    lock.unlock();
    const Clock::time_point begin = Clock::now();
    look(up_to);
    const Clock::time_point end = Clock::now();
    lock.lock();
    done = request;
    const auto rest = (end - begin) * (1 / share - 1);
    rests_until = end + std::chrono::duration_cast<Clock::duration>(rest);
    changed.notify_all();
  }
  has_ended = true;
  changed.notify_all();
}

LookThread::LookThread(Look look, double share)
    : shared_(std::make_shared<Shared>(std::move(look), share)) {}

LookThread::~LookThread() { end(std::chrono::milliseconds(0)); }

void LookThread::begin() {
  if (thread_.joinable()) return;
  thread_ = std::thread([shared = shared_] { shared->run(); });
  shared_->thread = thread_.get_id();
}

void LookThread::ask(std::int64_t last) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->ends || (shared_->asked > 0 && shared_->last == last)) return;
  shared_->last = last;
  ++shared_->asked;
  begin();
  shared_->changed.notify_all();
}

bool LookThread::ask_now(std::int64_t last, std::chrono::milliseconds wait) {
  std::unique_lock lock(shared_->mutex);
  if (shared_->ends || is_this()) return false;
  if (shared_->asked == 0 || shared_->last != last) {
    shared_->last = last;
    ++shared_->asked;
  }
  const std::uint64_t request = shared_->asked;
  shared_->urgent = request;
  begin();
  shared_->changed.notify_all();
  const auto is_over = [&] { return shared_->done >= request || shared_->ends; };
  return shared_->changed.wait_for(lock, wait, is_over) && shared_->done >= request;
}

bool LookThread::end(std::chrono::milliseconds wait) {
  std::unique_lock lock(shared_->mutex);
  shared_->ends = true;
  shared_->changed.notify_all();
  if (!thread_.joinable()) return true;
  const bool is_own = is_this();
  const bool over =
      !is_own && shared_->changed.wait_for(lock, wait, [this] { return shared_->has_ended; });
  lock.unlock();
  if (over) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return over;
}

bool LookThread::is_this() const { return shared_->thread == std::this_thread::get_id(); }

}  // namespace telens::features
