// Ends the recordings of a program that std::terminate ends: an exception that nothing catches.
#pragma once

#include <sys/types.h>
#include <functional>
#include <string>

namespace telens::record {

// While one lives, std::terminate calls its function with the exception's name and words, on a
// thread of its own, and waits five seconds for it at the most: the thread that ends the program
// may hold what the function waits for. Then the handler that was there before has its turn.
class EndOnTerminate {
 public:
  using End = std::function<void(const std::string& exception)>;
  explicit EndOnTerminate(End end);
  ~EndOnTerminate();
  EndOnTerminate(const EndOnTerminate&) = delete;
  EndOnTerminate& operator=(const EndOnTerminate&) = delete;

 private:
  friend struct EndsOnTerminate;
  End end_;
  pid_t owner_;  // a forked child leaves its parent's recordings alone
};

}  // namespace telens::record
