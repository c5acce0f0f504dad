// Saves the recorded data when the process receives SIGTERM.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace telens::debug {

// While it lives, SIGTERM makes a dedicated thread call `flush`. Then the process ends as it would
// have without it, also if `flush` exceeds a time limit, for example on a hanging disk. A handler
// that the program installed itself is called at once, as if this object did not exist, and decides
// whether the process ends. Does nothing in a forked child, or if SIGTERM is ignored. At most one
// object at a time. A program may install its own handlers over ours: eight different ones are
// kept, including the original one. If this object finds a ninth, it reports that on stderr and
// does nothing.
class TerminationFlush {
 public:
  static constexpr std::chrono::seconds kLongestFlush{10};

  // `flush` shares ownership of its data: after the limit it may outlive this object.
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
