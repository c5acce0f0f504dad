// A thread that looks at something now and then, for a part of the time at most. The caller that
// asks for a look does not wait for it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace telens::features {

// One thread asks and ends; any thread may ask for a look now. The thread begins with the first
// look, and takes no signals.
class LookThread {
 public:
  // Looks at all iterations up to this one. It must not throw, and owns what it uses: the thread
  // may outlive this object.
  using Look = std::function<void(std::int64_t last)>;

  // share: of the time, 0 to 1; a look that takes a second under a share of 0.01 is followed by 99
  // seconds without one.
  LookThread(Look look, double share);
  ~LookThread();
  LookThread(const LookThread&) = delete;
  LookThread& operator=(const LookThread&) = delete;

  // Asks for a look, and returns at once. Of several requests that wait the last one counts.
  void ask(std::int64_t last);
  // Has it done at once, whatever the share, and waits for that; false: it took longer. On the
  // thread itself, from within a look, it does nothing.
  bool ask_now(std::int64_t last, std::chrono::milliseconds wait);
  // A look that goes on is waited for, so long at the most; no other begins. False: it goes on.
  bool end(std::chrono::milliseconds wait);

 private:
  struct Shared;
  void begin();          // under the lock
  bool is_this() const;  // under the lock

  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace telens::features
