// Implements hooks/streams.h for libtelens_observe.so, which sees only CPU tensors. CPU operators
// are synchronous, so streams need no synchronization.
#include "hooks/streams.h"

#include <cstring>
#include <utility>

#include "core/torch_compat.h"

namespace telens {

StreamHandle current_stream(DeviceId device) { return {.device = device}; }
void wait_for(const StreamHandle&) {}
void StreamSet::add(DeviceId) {}
void StreamSet::join() {}

struct StreamEvent::Impl {};
StreamEvent::StreamEvent(DeviceId) {}
StreamEvent::~StreamEvent() = default;
void StreamEvent::synchronize() const {}

namespace {

class FinishedCopy final : public HostCopy {
 public:
  explicit FinishedCopy(std::vector<TensorHandle> tensors) : tensors_(std::move(tensors)) {}

  bool arrived() override { return true; }
  std::vector<TensorHandle> take() override { return std::exchange(tensors_, {}); }

 private:
  std::vector<TensorHandle> tensors_;
};

}  // namespace

std::unique_ptr<HostCopy> copy_to_host(std::vector<TensorHandle> tensors) {
  for (TensorHandle& each : tensors) {
    if (each.defined()) each = to_torch(each).cpu().contiguous();
  }
  return std::make_unique<FinishedCopy>(std::move(tensors));
}

TensorHandle copy_to_device(std::span<const std::int64_t> numbers, DeviceId device) {
  const at::Tensor host = at::empty({static_cast<std::int64_t>(numbers.size())}, at::kLong);
  if (!numbers.empty()) {
    std::memcpy(host.mutable_data_ptr(), numbers.data(), numbers.size_bytes());
  }
  return host.to(to_torch(device));
}

}  // namespace telens
