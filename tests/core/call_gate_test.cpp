// Calls to an object that another thread may close at any time. Also run under ThreadSanitizer
// (preset tsan).
#include "core/base/call_gate.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace telens {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct Target {
  ~Target() { alive.store(false); }
  int counter = 0;
  std::atomic<bool> alive{true};
};

// Opens a target behind a gate, as a session is.
std::shared_ptr<Target> open_target(CallGate& gate) {
  auto target = std::make_shared<Target>();
  gate.open(target.get(), target);
  return target;
}

TEST(CallGate, open_gate_has_a_target_closed_gate_has_none) {
  CallGate gate;
  EXPECT_EQ(CallGate::Call(gate).target(), nullptr);
  const auto target = open_target(gate);
  EXPECT_EQ(CallGate::Call(gate).target(), target.get());
  gate.close(target.get());
  EXPECT_EQ(CallGate::Call(gate).target(), nullptr);
}

TEST(CallGate, closing_another_target_changes_nothing) {
  CallGate gate;
  const auto target = open_target(gate);
  const int other = 0;
  EXPECT_TRUE(gate.close(&other).wait_for_calls(milliseconds(0)));
  EXPECT_EQ(gate.target(), target.get());
}

TEST(CallGate, closing_waits_for_the_calls_of_other_threads) {
  CallGate gate;
  const auto target = open_target(gate);
  std::atomic<bool> called = false;
  std::atomic<bool> ended = false;
  std::thread caller([&] {
    const CallGate::Call call(gate);
    called.store(true);
    std::this_thread::sleep_for(milliseconds(100));
    ended.store(true);
  });
  while (!called.load()) std::this_thread::yield();
  EXPECT_TRUE(gate.close(target.get()).wait_for_calls(std::chrono::seconds(60)));
  EXPECT_TRUE(ended.load());
  caller.join();
}

TEST(CallGate, calls_of_the_closing_thread_are_ignored) {
  CallGate gate;
  const auto target = open_target(gate);
  const CallGate::Call outer(gate);
  const CallGate::Call inner(gate);
  const auto begin = steady_clock::now();
  EXPECT_TRUE(gate.close(target.get()).wait_for_calls(std::chrono::seconds(60)));
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(CallGate, running_call_outlives_the_timeout_and_its_target) {
  CallGate gate;
  std::shared_ptr<Target> target = open_target(gate);
  Target* const behind = target.get();
  std::atomic<bool> called = false;
  std::atomic<bool> may_end = false;
  std::thread caller([&] {
    const CallGate::Call call(gate);
    called.store(true);
    while (!may_end.load()) std::this_thread::yield();
    EXPECT_TRUE(static_cast<Target*>(call.target())->alive.load());
  });
  while (!called.load()) std::this_thread::yield();
  const std::weak_ptr<Target> watched = target;
  {
    const auto closed = gate.close(behind);
    EXPECT_FALSE(closed.wait_for_calls(milliseconds(20)));
  }
  target.reset();
  EXPECT_FALSE(watched.expired());
  may_end.store(true);
  caller.join();
  EXPECT_TRUE(watched.expired()) << "the last call lets go of it";
}

// Threads that call without a pause while targets are opened and closed.
TEST(CallGate, concurrent_calls_never_see_a_removed_target) {
  CallGate gate;
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> calls = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      while (!stop.load()) {
        const CallGate::Call call(gate);
        if (auto* target = static_cast<Target*>(call.target())) {
          const CallGate::Call nested(gate);
          EXPECT_TRUE(target->alive.load());
          calls.fetch_add(1);
        }
      }
    });
  }
  for (int i = 0; i < 500; ++i) {
    const auto target = open_target(gate);
    while (i == 0 && calls.load() == 0) std::this_thread::yield();
    const auto closed = gate.close(target.get());
    ASSERT_TRUE(closed.wait_for_calls(std::chrono::seconds(60)));
    ++target->counter;  // no call may use it any more, or this is a race
  }
  stop.store(true);
  for (std::thread& each : callers) each.join();
  EXPECT_GT(calls.load(), 0);
}

TEST(CallGate, forked_child_sees_a_closed_gate) {
  CallGate gate;
  const auto target = open_target(gate);
  gate.prepare_fork();
  const pid_t child = fork();
  if (child == 0) {
    gate.after_fork_in_child();
    _exit(gate.target() == nullptr && CallGate::Call(gate).target() == nullptr &&
                  target.use_count() == 2
              ? 0
              : 1);
  }
  gate.after_fork_in_parent();
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(gate.target(), target.get());
}

}  // namespace
}  // namespace telens
