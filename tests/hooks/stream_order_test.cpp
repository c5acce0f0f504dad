// The order of streams that use the same memory, on a simulated device.
#include "hooks/streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gmock/gmock.h>

#include <string>

namespace telens {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr at::DeviceType kMadeUp = at::DeviceType::PrivateUse1;

std::vector<c10::StreamId> current(2, 0);  // by device
std::vector<std::string> enqueued;

std::string get_name(const c10::Stream& stream) {
  return fmt::format("{}.{}", static_cast<int>(stream.device_index()), stream.id());
}

// Notes which events are recorded and waited for; an event is the stream on which it was recorded.
class MadeUpDevice final : public c10::impl::DeviceGuardImplInterface {
 public:
  explicit MadeUpDevice(at::DeviceType) {}
  MadeUpDevice() = default;

  at::DeviceType type() const override { return kMadeUp; }
  at::Device exchangeDevice(at::Device) const override { return getDevice(); }
  at::Device getDevice() const override { return {kMadeUp, 0}; }
  void setDevice(at::Device) const override {}
  void uncheckedSetDevice(at::Device) const noexcept override {}
  c10::Stream getStream(at::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device,
                       current[static_cast<std::size_t>(device.index())]);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    *event = new std::string(get_name(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    enqueued.push_back(
        fmt::format("{} waits for {}", get_name(stream), *static_cast<const std::string*>(event)));
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<std::string*>(event);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, MadeUpDevice);

class StreamOrder : public ::testing::Test {
 protected:
  void SetUp() override {
    current = {0, 0};
    enqueued.clear();
  }
  static const DeviceId first, second;
};

const DeviceId StreamOrder::first{static_cast<std::int8_t>(kMadeUp), 0};
const DeviceId StreamOrder::second{static_cast<std::int8_t>(kMadeUp), 1};

TEST_F(StreamOrder, makes_the_current_stream_wait_for_another_one) {
  current[0] = 3;
  const StreamHandle other = current_stream(first);
  current[0] = 5;
  wait_for(other);
  EXPECT_THAT(enqueued, ElementsAre("0.5 waits for 0.3"));
}

TEST_F(StreamOrder, makes_nobody_wait_for_himself) {
  wait_for(current_stream(first));
  wait_for(current_stream(DeviceId()));
  EXPECT_THAT(enqueued, IsEmpty());
}

TEST_F(StreamOrder, joins_each_stream_once_on_its_own_device) {
  StreamSet streams;
  for (const int stream : {1, 2, 1}) {
    current = {stream, stream + 10};
    streams.add(first);
    streams.add(second);
  }
  streams.add(DeviceId());
  streams.join();
  EXPECT_THAT(enqueued, UnorderedElementsAre("0.1 waits for 0.2", "1.11 waits for 1.12"));
  enqueued.clear();
  streams.join();
  EXPECT_THAT(enqueued, IsEmpty());
}

}  // namespace
}  // namespace telens
