// Saves what was recorded when the process is told to end (SIGTERM).
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace telens::debug {

// While it lives, SIGTERM makes a thread of its own call `flush`; then the process ends as it would
// have, also where `flush` takes longer than a limit, as on a disk that hangs. A handler that the
// program installed itself is called at once, as if we were not there, and decides what becomes of
// the process. Does nothing in a forked child, nor where SIGTERM is ignored. At most one at a time.
// A program may put handlers of its own over ours: eight different ones are kept, what was there at
// first among them. Where it finds a ninth it says so on stderr and does nothing.
class TerminationFlush {
 public:
  static constexpr std::chrono::seconds kLongestFlush{10};

  // `flush` shares what it uses: after the limit it may go on beyond this object.
  explicit TerminationFlush(std::function<void()> flush,
                            std::chrono::milliseconds longest_flush = kLongestFlush);
  ~TerminationFlush();
  TerminationFlush(const TerminationFlush&) = delete;
  TerminationFlush& operator=(const TerminationFlush&) = delete;

 private:
  void watch();
  void flush_in_time() const;

  std::function<void()> flush_;
  std::chrono::milliseconds longest_flush_;
  std::thread watcher_;
};

}  // namespace telens::debug
