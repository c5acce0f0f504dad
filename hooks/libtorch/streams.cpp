#include "hooks/streams.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "core/torch_compat.h"

namespace telens {
namespace {

c10::Stream to_torch(const StreamHandle& stream) {
  return c10::Stream::unpack3(stream.id, stream.device.index,
                              static_cast<c10::DeviceType>(stream.device.type));
}

}  // namespace

// ---- order of streams

StreamHandle current_stream(DeviceId device) {
  const c10::Device of = telens::to_torch(device);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(of.type()).getStream(of);
  return {to_handle(stream.device()), static_cast<std::int64_t>(stream.id())};
}

void wait_for(const StreamHandle& stream) {
  if (current_stream(stream.device) == stream) return;
  const c10::Stream of = to_torch(stream);
  c10::Event reached(of.device_type());
  reached.record(of);
  reached.block(to_torch(current_stream(stream.device)));
}

void StreamSet::add(DeviceId device) {
  const StreamHandle stream = current_stream(device);
  if (std::ranges::find(streams_, stream) == streams_.end()) streams_.push_back(stream);
}

void StreamSet::join() {
  for (const StreamHandle& stream : std::exchange(streams_, {})) wait_for(stream);
}

struct StreamEvent::Impl {
  c10::Event event;
};

StreamEvent::StreamEvent(DeviceId device) : impl_(new Impl{c10::Event(to_torch(device).type())}) {
  impl_->event.record(to_torch(current_stream(device)));
}

StreamEvent::~StreamEvent() = default;

void StreamEvent::synchronize() const { impl_->event.synchronize(); }

// ---- copies

namespace {

// Larger tensors are copied one by one: packing would double their memory on the device.
constexpr std::size_t kMostPackedBytes = std::size_t{64} << 10;

at::Tensor pinned(std::size_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)},
                   at::TensorOptions(at::kByte).pinned_memory(true));
}

// Copies the tensors of a single device.
class DeviceCopy {
 public:
  explicit DeviceCopy(const at::Device& device) : device_(device), written_(device.type()) {}

  const at::Device& device() const { return device_; }
  void add(std::size_t index, const at::Tensor& tensor) {
    const at::Tensor dense = tensor.detach().contiguous();
    parts_.push_back({index, dense.flatten().view(at::kByte), dense, {}});
  }

  void begin() {
    const c10::DeviceGuard guard(device_);
    // Elements of 8 bytes first, then elements of 4, so that each tensor is aligned for its type.
    std::ranges::stable_sort(parts_, std::greater(),
                             [](const Part& part) { return part.tensor.element_size(); });
    std::vector<at::Tensor> packed;
    for (Part& part : parts_) {
      if (part.bytes.nbytes() <= kMostPackedBytes) {
        packed.push_back(part.bytes);
      } else {
        part.host = pinned(part.bytes.nbytes());
        part.host.copy_(part.bytes, /*non_blocking=*/true);
      }
    }
    if (!packed.empty()) begin_packed(at::cat(packed));
    written_.record(to_torch(current_stream(to_handle(device_))));
  }

  bool arrived() const { return written_.query(); }
  void wait() const { written_.synchronize(); }

  // Replaces the tensors on the device by the data that has arrived.
  void unpack(std::vector<at::Tensor>& tensors) const {
    for (const Part& part : parts_) {
      tensors[part.index] = part.host.view(part.tensor.scalar_type()).view(part.tensor.sizes());
    }
  }

 private:
  struct Part {
    std::size_t index;
    // Keeps the source alive until it is read: its memory may be reallocated on another stream.
    at::Tensor bytes;
    at::Tensor tensor;
    at::Tensor host;  // bytes
  };

  void begin_packed(const at::Tensor& packed) {
    packed_ = packed;
    const at::Tensor host = pinned(packed.nbytes());
    host.copy_(packed, /*non_blocking=*/true);
    std::int64_t offset = 0;
    for (Part& part : parts_) {
      if (part.host.defined()) continue;
      part.host = host.narrow(0, offset, part.bytes.numel());
      offset += part.bytes.numel();
    }
  }

  at::Device device_;
  std::vector<Part> parts_;
  at::Tensor packed_;
  c10::Event written_;
};

class PackedCopy final : public HostCopy {
 public:
  explicit PackedCopy(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].defined()) continue;
      if (tensors_[i].is_cpu()) {
        tensors_[i] = tensors_[i].contiguous();
      } else {
        of(tensors_[i].device()).add(i, tensors_[i]);
      }
    }
    for (DeviceCopy& copy : copies_) copy.begin();
    // Host tensors wait for the copies of other devices, while their owners may continue.
    if (copies_.empty()) return;
    for (at::Tensor& tensor : tensors_) {
      if (tensor.defined() && tensor.is_cpu()) tensor = tensor.clone();
    }
  }

  bool arrived() override { return std::ranges::all_of(copies_, &DeviceCopy::arrived); }

  std::vector<TensorHandle> take() override {
    for (const DeviceCopy& copy : copies_) {
      copy.wait();
      copy.unpack(tensors_);
    }
    return to_handles(std::exchange(tensors_, {}));
  }

 private:
  DeviceCopy& of(const at::Device& device) {
    const auto found = std::ranges::find(copies_, device, &DeviceCopy::device);
    return found != copies_.end() ? *found : copies_.emplace_back(device);
  }

  std::vector<at::Tensor> tensors_;
  std::deque<DeviceCopy> copies_;
};

}  // namespace

std::unique_ptr<HostCopy> copy_to_host(std::vector<TensorHandle> tensors) {
  return std::make_unique<PackedCopy>(to_torch(tensors));
}

TensorHandle copy_to_device(std::span<const std::int64_t> numbers, DeviceId device) {
  at::Tensor host = at::empty({static_cast<std::int64_t>(numbers.size())},
                              at::TensorOptions(at::kLong).pinned_memory(!device.is_cpu()));
  if (!numbers.empty()) {
    std::memcpy(host.mutable_data_ptr(), numbers.data(), numbers.size_bytes());
  }
  return host.to(to_torch(device), /*non_blocking=*/true);
}

}  // namespace telens
