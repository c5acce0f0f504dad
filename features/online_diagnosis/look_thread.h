// A thread that runs a function on request for at most a share of the time. Callers do not wait for
// it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace telens::features {

// ask() and end() must be called by one thread; ask_now() may be called by any. The thread starts
// with the first look and blocks all signals.
class LookThread {
 public:
  // Looks at all iterations up to `last`. Must not throw, and must own everything it uses, because
  // the thread may outlive this object.
  using Look = std::function<void(std::int64_t last)>;

  // `share` is the share of the time, 0 to 1: with 0.01, a look of one second is followed by a
  // pause of 99 seconds.
  LookThread(Look look, double share);
  ~LookThread();
  LookThread(const LookThread&) = delete;
  LookThread& operator=(const LookThread&) = delete;

  // Requests a look and returns at once. The latest request replaces pending ones.
  void ask(std::int64_t last);
  // Runs a look at once, regardless of the share, and waits for it. Returns false if it takes
  // longer than `wait`. Does nothing if called on the look thread.
  bool ask_now(std::int64_t last, std::chrono::milliseconds wait);
  // Waits up to `wait` for a running look and starts no other. Returns false if the look is still
  // running.
  bool end(std::chrono::milliseconds wait);

 private:
  struct Shared;
  void begin();          // requires the lock
  bool is_this() const;  // requires the lock

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace telens::features
