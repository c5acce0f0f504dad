#include "core/distributed/process_group.h"

#include <gtest/gtest.h>

#include <chrono>

namespace telens {
namespace {

using std::chrono::milliseconds;

TEST(StorePause, is_a_bounded_quarter_of_the_waited_time) {
  EXPECT_EQ(find_pause(milliseconds(0)), milliseconds(5));
  EXPECT_EQ(find_pause(milliseconds(20)), milliseconds(5));
  EXPECT_EQ(find_pause(milliseconds(400)), milliseconds(100));
  EXPECT_EQ(find_pause(milliseconds(2'000)), milliseconds(500));
  EXPECT_EQ(find_pause(std::chrono::minutes(5)), milliseconds(500));
}

}  // namespace
}  // namespace telens
