// Forks of a process whose threads use HDF5.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <string_view>
#include <thread>

#include "core/base/error.h"
#include "record/hdf5.h"

namespace telens::record {
namespace {

using Clock = std::chrono::steady_clock;

TEST(Hdf5Fork, child_of_a_fork_during_a_call_can_use_hdf5) {
  std::promise<void> entered, about_to_fork;
  Clock::time_point left;
  std::thread inside([&] {
    const hdf5::Lock lock;
    entered.set_value();
    about_to_fork.get_future().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    left = Clock::now();
  });
  entered.get_future().wait();
  about_to_fork.set_value();
  const auto forked = Clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // ends a child that waits for a thread of its parent
    { const hdf5::Lock lock; }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  inside.join();
  EXPECT_GT(left, forked);  // the thread was inside
  const hdf5::Lock lock;    // works in the parent
}

TEST(Hdf5Fork, fork_does_not_wait_for_a_stuck_thread) {
  std::promise<void> entered, forked;
  std::thread inside([&] {
    const hdf5::Lock lock;
    entered.set_value();
    forked.get_future().wait();
  });
  entered.get_future().wait();
  ::alarm(60);  // ends a fork that waits
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const hdf5::Lock lock;
    } catch (const RecordError& error) {
      const bool reported_damage =
          std::string_view(error.what()).find("was forked") != std::string::npos;
      ::_exit(reported_damage ? 0 : 4);
    }
    ::_exit(3);  // the library would be inconsistent
  }
  ::alarm(0);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  forked.set_value();
  inside.join();
  const hdf5::Lock lock;  // works in the parent
  // Children may use the library once no thread is inside it.
  const pid_t later = ::fork();
  if (later == 0) {
    { const hdf5::Lock own; }
    ::_exit(0);
  }
  ::waitpid(later, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
}  // namespace telens::record
