// Barriers and shuffles of host_grid.h, on which all tests of device code depend.
#include "tests/core/cuda/host_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace telens::testing {
namespace {

using ::testing::ThrowsMessage;

struct Words {
  std::uint32_t values[cuda::kThreads];
};

TEST(HostGrid, runs_every_thread_of_every_block_once) {
  for (const Order order : kOrders) {
    std::vector<int> runs(3 * cuda::kThreads);
    run_grid<Words>(3, order, [&](const HostThread& thread, Words&) {
      EXPECT_EQ(thread.blocks(), 3);
      ++runs[static_cast<std::size_t>(thread.block() * cuda::kThreads + thread.index())];
    });
    EXPECT_THAT(runs, ::testing::Each(1));
  }
}

TEST(HostGrid, barrier_makes_all_writes_visible) {
  for (const Order order : kOrders) {
    run_grid<Words>(2, order, [&](const HostThread& thread, Words& shared) {
      const auto index = static_cast<std::uint32_t>(thread.index());
      for (std::uint32_t round = 0; round < 3; ++round) {
        shared.values[index] = index + round;
        thread.sync();
        const std::uint32_t other = cuda::kThreads - 1 - index;
        EXPECT_EQ(shared.values[other], other + round);
        thread.sync();
      }
    });
  }
}

TEST(HostGrid, a_missing_barrier_shows_in_one_of_the_orders) {
  bool seen = false;
  for (const Order order : kOrders) {
    run_grid<Words>(1, order, [&](const HostThread& thread, Words& shared) {
      const auto index = static_cast<std::uint32_t>(thread.index());
      shared.values[index] = index;
      const std::uint32_t other = cuda::kThreads - 1 - index;
      seen = seen || shared.values[other] != other;
    });
  }
  EXPECT_TRUE(seen);
}

TEST(HostGrid, shuffles_and_ballots_work_per_warp) {
  for (const Order order : kOrders) {
    run_grid<Words>(1, order, [&](const HostThread& thread, Words&) {
      for (const int mask : {1, 16, 31}) {
        EXPECT_EQ(thread.shuffle_xor(1.5 * thread.index(), mask), 1.5 * (thread.index() ^ mask));
      }
      EXPECT_EQ(thread.ballot(thread.index() % 3 == 0),
                thread.index() / cuda::kWarp % 3 == 0   ? 0x49249249U
                : thread.index() / cuda::kWarp % 3 == 1 ? 0x92492492U
                                                        : 0x24924924U);
    });
  }
}

TEST(HostGrid, a_barrier_that_one_thread_misses_is_an_error) {
  const auto run = [](const auto& kernel) { run_grid<Words>(1, Order::forward, kernel); };
  const auto missed = ThrowsMessage<std::logic_error>(::testing::HasSubstr("not all threads"));
  EXPECT_THAT(
      [&] {
        run([](const HostThread& thread, Words&) {
          if (thread.index() != 7) thread.sync();
        });
      },
      missed);
  EXPECT_THAT(
      [&] {
        run([](const HostThread& thread, Words&) {
          if (thread.index() % 2 == 0) thread.ballot(true);
        });
      },
      missed);
}

}  // namespace
}  // namespace telens::testing
