// Mutual exclusion of session API calls: one thread at a time is in one of them.
#pragma once

#include <cxxabi.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>

namespace telens::debug {

class Turns {
 public:
  // Runs `work` when it is this thread's turn. Returns its exception; null if it does not throw.
  template <typename Work>
  std::exception_ptr run(const Work& work) {
    const std::lock_guard lock(mutex_);
    const Counted counted(depth_);
    return thrown_by(work);
  }

  // Called under the lock: returns how many nested turns this thread is in.
  int depth() const { return depth_; }

  // Returns a lock, which is locked if this thread's turn comes within the limit.
  std::unique_lock<std::recursive_timed_mutex> wait(std::chrono::seconds limit) {
    return std::unique_lock(mutex_, limit);
  }

  // Returns the exception of `work`; null if it does not throw. The unwinding of a thread that ends
  // is not an exception, and propagates.
  template <typename Work>
  static std::exception_ptr thrown_by(const Work& work) {
    try {
      work();
    } catch (const abi::__forced_unwind&) {
      throw;
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

 private:
  // A turn counts until it is left, also by a thread that ends within it: while one is counted, the
  // session cannot end.
  class Counted {
   public:
    explicit Counted(int& depth) : depth_(depth) { ++depth_; }
    ~Counted() { --depth_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;

   private:
    int& depth_;
  };

  std::recursive_timed_mutex mutex_;
  int depth_ = 0;
};

}  // namespace telens::debug
