// Ends recordings when an uncaught exception terminates the program.
#pragma once

#include <sys/types.h>
#include <functional>
#include <string>

namespace telens::record {

// While an object exists, std::terminate calls its function with the type and message of the
// exception, on a new thread, and waits at most five seconds: the terminating thread may hold a
// lock that the function needs. The previous terminate handler runs afterwards.
class EndOnTerminate {
 public:
  using End = std::function<void(const std::string& exception)>;
  explicit EndOnTerminate(End end);
  ~EndOnTerminate();
  EndOnTerminate(const EndOnTerminate&) = delete;
  EndOnTerminate& operator=(const EndOnTerminate&) = delete;

 private:
  friend struct TerminateHandlers;
  End end_;
  pid_t owner_;  // a forked child must not end the recordings of its parent
};

}  // namespace telens::record
