// Lets threads call an object that another thread may remove at any time. No LibTorch.
//
//   const CallGate::Call call(gate);
//   if (call.target() != nullptr) ...   // lives at least as long as `call`
//
// To remove the object, close() the gate and wait for the running calls. The wait has a timeout,
// because a call may itself wait for the closing thread. A call that outlives the timeout keeps the
// object alive.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/error.h"

namespace telens {

class TELENS_EXPORT CallGate {
  // The target of an open gate and the number of running calls.
  struct Opening {
    void* target;
    std::shared_ptr<void> owner;
    int calls = 0;
  };

 public:
  // A running call. Calls from the same thread must nest.
  class TELENS_EXPORT Call {
   public:
    explicit Call(CallGate& gate);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    void* target() const { return opening_ ? opening_->target : nullptr; }

   private:
    friend class CallGate;
    CallGate& gate_;
    std::shared_ptr<Opening> opening_;
    const Call* outer_ = nullptr;  // the enclosing call of this thread
  };

  // The object of a gate that was closed.
  class TELENS_EXPORT Closed {
   public:
    // Waits until no other thread calls the object. Returns false if some still do after `limit`.
    // Ignores calls of this thread, which cannot end during the wait.
    bool wait_for_calls(std::chrono::milliseconds limit) const;

   private:
    friend class CallGate;
    Closed(CallGate& gate, std::shared_ptr<Opening> opening)
        : gate_(gate), opening_(std::move(opening)) {}
    CallGate& gate_;
    std::shared_ptr<Opening> opening_;  // nullptr if the gate had another target
  };

  CallGate() = default;
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  // Subsequent calls see `target` and share `owner` (may be null). Releases the previous target.
  void open(void* target, std::shared_ptr<void> owner);
  // Closes the gate if its target is `target`.
  Closed close(const void* target);
  void* target() const;

  // Call around fork(). In the child the gate is closed and the parent's owner is never released.
  void prepare_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  static int calls_of_this_thread(const Opening& opening);

  mutable std::mutex mutex_;  // guards opening_; no callbacks run under it
  std::condition_variable ended_;
  std::shared_ptr<Opening> opening_;
};

}  // namespace telens
