// Lets threads call an object that another thread may take away meanwhile. No LibTorch.
//
//   const CallGate::Call call(gate);
//   if (call.target() != nullptr) ...   // it lives at least as long as `call`
//
// To take it away: close() the gate, then wait for the calls that are under way. The wait has a
// limit, since a call may itself wait for the thread that closes; a call that goes on beyond it
// keeps alive what it uses.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/error.h"

namespace telens {

class TELENS_EXPORT CallGate {
  // The thing that callers find behind the gate, until it is closed.
  struct Opening {
    void* target;
    std::shared_ptr<void> owner;
    int calls = 0;
  };

 public:
  // A call under way. Calls of one thread end in the reverse order of their beginnings.
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
    const Call* outer_ = nullptr;  // a call of the same thread
  };

  // The thing that was behind a gate that was closed.
  class TELENS_EXPORT Closed {
   public:
    // Waits until no other thread calls it any more; false: some still do after `limit`. Calls of
    // this thread do not count, they cannot end meanwhile.
    bool wait_for_calls(std::chrono::milliseconds limit) const;

   private:
    friend class CallGate;
    Closed(CallGate& gate, std::shared_ptr<Opening> opening)
        : gate_(gate), opening_(std::move(opening)) {}
    CallGate& gate_;
    std::shared_ptr<Opening> opening_;  // null: it was not there
  };

  CallGate() = default;
  CallGate(const CallGate&) = delete;
  CallGate& operator=(const CallGate&) = delete;

  // Callers find `target` from here on; each call shares `owner`, which may be null. What was there
  // before is let go of.
  void open(void* target, std::shared_ptr<void> owner);
  // Takes away what is there, if that is `target`.
  Closed close(const void* target);
  void* target() const;

  // Around a fork(): the child finds the gate closed, and never lets go of the parent's owner.
  void prepare_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

 private:
  static int calls_of_this_thread(const Opening& opening);

  mutable std::mutex mutex_;  // over what follows; nothing is called under it
  std::condition_variable ended_;
  std::shared_ptr<Opening> opening_;
};

}  // namespace telens
