// Callers of LookThread do not wait for a look unless they ask to.
#include "features/online_diagnosis/look_thread.h"

#include <gmock/gmock.h>

#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace telens::features {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

constexpr seconds kLong{60};  // no test waits this long

// Records the iterations that it is asked to look at, and may be blocked.
struct Looks {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::int64_t> seen;
  bool is_open = true;

  LookThread::Look look() {
    return [this](std::int64_t last) {
      std::unique_lock lock(mutex);
      seen.push_back(last);
      changed.notify_all();
      changed.wait(lock, [this] { return is_open; });
    };
  }
  void open() {
    const std::lock_guard lock(mutex);
    is_open = true;
    changed.notify_all();
  }
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return seen.size() >= count; });
  }
  std::vector<std::int64_t> all() {
    const std::lock_guard lock(mutex);
    return seen;
  }
};

TEST(LookThread, runs_only_the_latest_request_when_idle) {
  Looks looks;
  looks.is_open = false;
  LookThread thread(looks.look(), 1);
  thread.ask(0);
  looks.wait_for(1);
  // None of these calls waits for the look, which ends below.
  for (std::int64_t i = 1; i <= 100; ++i) thread.ask(i);
  EXPECT_THAT(looks.all(), ElementsAre(0));
  looks.open();
  EXPECT_TRUE(thread.ask_now(100, kLong));
  EXPECT_THAT(looks.all(), ElementsAre(0, 100));
}

TEST(LookThread, rests_for_as_long_as_its_share_of_the_time_asks_for) {
  Looks looks;
  const auto slow = [look = looks.look()](std::int64_t last) {
    std::this_thread::sleep_for(milliseconds(20));
    look(last);
  };
  LookThread thread(slow, 1e-4);  // 200 s of rest
  EXPECT_TRUE(thread.ask_now(1, kLong));
  thread.ask(2);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_THAT(looks.all(), ElementsAre(1));
  EXPECT_TRUE(thread.ask_now(3, kLong));  // whatever the share
  EXPECT_THAT(looks.all(), ElementsAre(1, 3));
}

TEST(LookThread, does_not_look_twice_at_the_same_iteration) {
  Looks looks;
  LookThread thread(looks.look(), 1);
  EXPECT_TRUE(thread.ask_now(5, kLong));
  EXPECT_TRUE(thread.ask_now(5, kLong));
  thread.ask(5);
  EXPECT_TRUE(thread.ask_now(4, kLong));  // iterations may begin anew
  EXPECT_THAT(looks.all(), ElementsAre(5, 4));
}

TEST(LookThread, wait_respects_its_timeout) {
  const auto looks = std::make_shared<Looks>();  // the thread outlives this test
  looks->is_open = false;
  LookThread thread([looks](std::int64_t last) { looks->look()(last); }, 1);
  EXPECT_FALSE(thread.ask_now(1, milliseconds(10)));
  EXPECT_FALSE(thread.end(milliseconds(10)));
  looks->open();
}

TEST(LookThread, is_not_waited_for_from_within_a_look) {
  std::promise<bool> asked;
  std::promise<bool> ended;
  LookThread* self = nullptr;
  LookThread thread(
      [&](std::int64_t) {
        asked.set_value(self->ask_now(2, kLong));
        ended.set_value(self->end(kLong));
      },
      1);
  self = &thread;
  thread.ask(1);
  EXPECT_FALSE(asked.get_future().get());
  EXPECT_FALSE(ended.get_future().get());
}

TEST(LookThread, destructor_waits_for_the_running_look) {
  Looks looks;
  LookThread thread(looks.look(), 1);
  thread.ask(1);
  looks.wait_for(1);
  EXPECT_TRUE(thread.end(kLong));
  thread.ask(2);
  EXPECT_FALSE(thread.ask_now(3, kLong));
  EXPECT_THAT(looks.all(), ElementsAre(1));
}

}  // namespace
}  // namespace telens::features
