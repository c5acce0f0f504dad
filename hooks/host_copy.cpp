#include "hooks/host_copy.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

namespace telens {
namespace {

constexpr std::size_t kWordBytes = sizeof(std::int64_t);

void check_words(const at::Tensor& tensor) {
  if (tensor.element_size() == kWordBytes) return;
  raise<UsageError>("copy_to_host: a tensor of {}; expected elements of {} bytes",
                    c10::toString(tensor.scalar_type()), kWordBytes);
}

// The tensors of one device, one behind the other.
class DeviceCopy {
 public:
  explicit DeviceCopy(const at::Device& device) : device_(device), written_(device.type()) {}

  const at::Device& device() const { return device_; }
  void add(std::size_t index, const at::Tensor& tensor) {
    indices_.push_back(index);
    words_.push_back(tensor.contiguous().view(at::kLong).flatten());
  }

  void begin() {
    const c10::DeviceGuard guard(device_);
    packed_ = at::cat(words_);
    host_ = at::empty(packed_.sizes(), at::TensorOptions(at::kLong).pinned_memory(true));
    host_.copy_(packed_, /*non_blocking=*/true);
    written_.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }

  bool arrived() const { return written_.query(); }
  void wait() const { written_.synchronize(); }

  // Puts what has arrived in the place of the tensors on the device.
  void unpack(std::vector<at::Tensor>& tensors) const {
    std::int64_t offset = 0;
    for (const std::size_t index : indices_) {
      at::Tensor& tensor = tensors[index];
      const std::int64_t words = tensor.numel();
      tensor = host_.narrow(0, offset, words).view(tensor.scalar_type()).view(tensor.sizes());
      offset += words;
    }
  }

 private:
  at::Device device_;
  std::vector<std::size_t> indices_;
  // The sources live until they were read: whoever allocates their memory anew may do so on another
  // stream.
  std::vector<at::Tensor> words_;
  at::Tensor packed_;
  at::Tensor host_;
  c10::Event written_;
};

class PackedCopy final : public HostCopy {
 public:
  explicit PackedCopy(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].defined()) continue;
      check_words(tensors_[i]);
      if (tensors_[i].is_cpu()) {
        tensors_[i] = tensors_[i].contiguous();
      } else {
        of(tensors_[i].device()).add(i, tensors_[i]);
      }
    }
    for (DeviceCopy& copy : copies_) copy.begin();
  }

  bool arrived() override { return std::ranges::all_of(copies_, &DeviceCopy::arrived); }

  std::vector<at::Tensor> take() override {
    for (const DeviceCopy& copy : copies_) {
      copy.wait();
      copy.unpack(tensors_);
    }
    return std::move(tensors_);
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

std::unique_ptr<HostCopy> copy_to_host(std::vector<at::Tensor> tensors) {
  return std::make_unique<PackedCopy>(std::move(tensors));
}

at::Tensor copy_to_device(std::span<const std::int64_t> numbers, const at::Device& device) {
  at::Tensor host = at::empty({static_cast<std::int64_t>(numbers.size())},
                              at::TensorOptions(at::kLong).pinned_memory(!device.is_cpu()));
  std::memcpy(host.mutable_data_ptr(), numbers.data(), numbers.size_bytes());
  return host.to(device, /*non_blocking=*/true);
}

}  // namespace telens
