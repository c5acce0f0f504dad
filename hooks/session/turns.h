// Calls of the session API that exclude each other: one thread at a time is in one of them.
#pragma once

#include <cxxabi.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>

namespace telens::debug {

class Turns {
 public:
  // Runs `work` when it is this thread's turn. Returns what it throws; null: nothing.
  template <typename Work>
  std::exception_ptr run(const Work& work) {
    const std::lock_guard lock(mutex_);
    const Counted counted(depth_);
    return thrown_by(work);
  }

  // Under the lock: in how many turns this thread is, one within the other.
  int depth() const { return depth_; }

  // Locked if it is this thread's turn within the limit.
  std::unique_lock<std::recursive_timed_mutex> wait(std::chrono::seconds limit) {
    return std::unique_lock(mutex_, limit);
  }

  // Returns what `work` throws; null: nothing. The unwinding of a thread that ends is no exception,
  // and passes.
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
  // A turn counts until it is left, also by a thread that ends within it: as long as one is
  // counted, the session cannot end.
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
