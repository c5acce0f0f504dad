// No thread waits for copies that are on their way from a device to the host.
#include "hooks/streams.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <string>

#include "core/torch_compat.h"
#include "tests/hooks/late_copies.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::LateCopies;

std::vector<std::string> get_names(const std::vector<Arrivals<std::string>::Arrived>& arrived) {
  std::vector<std::string> names;
  for (const auto& each : arrived) names.push_back(each.work);
  return names;
}

TEST(HostCopyTest, host_tensors_are_available_at_once_in_order) {
  const at::Tensor words = at::arange(6, at::kLong).view({2, 3});
  const at::Tensor values = at::arange(2, at::kDouble);
  const auto copy = copy_to_host(to_handles({words.t(), at::Tensor(), values}));
  EXPECT_TRUE(copy->arrived());
  const std::vector<at::Tensor> taken = to_torch(copy->take());
  ASSERT_EQ(taken.size(), 3U);
  EXPECT_TRUE(taken[0].is_contiguous());
  EXPECT_TRUE(taken[0].equal(words.t()));
  EXPECT_FALSE(taken[1].defined());
  EXPECT_TRUE(taken[2].is_same(values));
}

TEST(HostCopyTest, tensors_may_have_any_dtype) {
  for (const at::ScalarType dtype : {at::kByte, at::kBFloat16, at::kFloat, at::kBool}) {
    const at::Tensor tensor = at::empty({3}, dtype);
    EXPECT_TRUE(to_torch(copy_to_host({tensor})->take()[0]).is_same(tensor));
  }
}

TEST(ArrivalsTest, callbacks_run_in_order_without_blocking) {
  LateCopies late;
  Arrivals<std::string> arrivals(late.copies());
  EXPECT_FALSE(arrivals.add({at::arange(1, at::kLong)}, "first"));
  arrivals.add({at::arange(2, at::kLong)}, "second");
  arrivals.add({}, "third");
  EXPECT_THAT(arrivals.take(Waiting::no), IsEmpty());
  late.let_arrive(2);
  const auto arrived = arrivals.take(Waiting::no);
  EXPECT_THAT(get_names(arrived), ElementsAre("first", "second"));
  EXPECT_EQ(arrived[1].tensors.at(0).numel(), 2);
  EXPECT_THAT(arrivals.take(Waiting::no), IsEmpty());
  EXPECT_EQ(late.waited(), 0);
}

TEST(ArrivalsTest, whoever_waits_gets_all) {
  LateCopies late;
  Arrivals<std::string> arrivals(late.copies());
  arrivals.add({at::arange(1, at::kLong)}, "first");
  arrivals.add({at::arange(1, at::kLong)}, "second");
  EXPECT_THAT(get_names(arrivals.take(Waiting::yes)), ElementsAre("first", "second"));
  EXPECT_EQ(late.waited(), 2);
  EXPECT_THAT(arrivals.take(Waiting::yes), IsEmpty());
}

TEST(CopyToDeviceTest, numbers_are_copied_exactly) {
  const std::vector<std::int64_t> numbers{3, -1, std::int64_t{1} << 62};
  const at::Tensor copied = to_torch(copy_to_device(numbers, DeviceId()));
  ASSERT_EQ(copied.numel(), 3);
  EXPECT_TRUE(std::ranges::equal(numbers,
                                 std::span(copied.const_data_ptr<std::int64_t>(), numbers.size())));
  EXPECT_EQ(copy_to_device({}, DeviceId()).numel(), 0);
}

}  // namespace
}  // namespace telens
