// Asynchronous copies of tensors from a device to the host. Training does not wait for them; the
// data that has arrived is used at the end of a later iteration. No LibTorch:
// hooks/libtorch/host_copy.cpp implements it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/tensor_handle.h"

namespace telens {

class HostCopy {
 public:
  virtual ~HostCopy() = default;

  // Returns true if take() would not wait.
  virtual bool arrived() = 0;

  // Returns the tensors in their order, contiguous, on the host. Call it once.
  virtual std::vector<TensorHandle> take() = 0;
};

// Begins to copy tensors (undefined ones stay undefined) into pinned memory, in the order of the
// current streams of their devices: work enqueued there later may overwrite them. Small tensors of
// a device are copied as one packed buffer. Tensors on the host are passed through unchanged, and
// must not be modified afterwards.
TELENS_EXPORT std::unique_ptr<HostCopy> copy_to_host(std::vector<TensorHandle> tensors);

using HostCopies = std::function<std::unique_ptr<HostCopy>(std::vector<TensorHandle>)>;

// Copies a vector of int64 to a device, also without waiting for the device.
TensorHandle copy_to_device(std::span<const std::int64_t> numbers, DeviceId device);

enum class Waiting : std::uint8_t { no, yes };

// Work to run on tensors once they have arrived, in the order in which they were added. For one
// thread.
template <typename Work>
class Arrivals {
 public:
  struct Arrived {
    Work work;
    std::vector<TensorHandle> tensors;
  };

  explicit Arrivals(HostCopies copies = copy_to_host) : copies_(std::move(copies)) {}

  // Returns true if the tensors have already arrived.
  bool add(std::vector<TensorHandle> tensors, Work work) {
    under_way_.push_back({std::move(work), copies_(std::move(tensors))});
    return under_way_.back().copy->arrived();
  }

  // Waiting::yes: waits for all work.
  std::vector<Arrived> take(Waiting waiting) {
    std::vector<Arrived> arrived;
    while (!under_way_.empty()) {
      UnderWay& oldest = under_way_.front();
      if (waiting == Waiting::no && !oldest.copy->arrived()) break;
      std::vector<TensorHandle> tensors = oldest.copy->take();
      arrived.push_back({std::move(oldest.work), std::move(tensors)});
      under_way_.pop_front();
    }
    return arrived;
  }

 private:
  struct UnderWay {
    Work work;
    std::unique_ptr<HostCopy> copy;
  };

  HostCopies copies_;
  std::deque<UnderWay> under_way_;
};

}  // namespace telens
