// Tensors on their way from a device to the host. Training does not wait for them: it goes on, and
// what has arrived is used at the end of a later iteration.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace telens {

class HostCopy {
 public:
  virtual ~HostCopy() = default;

  // True if take() would not wait.
  virtual bool arrived() = 0;

  // The tensors in their order, contiguous, on the host. Once.
  virtual std::vector<at::Tensor> take() = 0;
};

// Begins to copy tensors (undefined ones stay so) into pinned memory, in the order of the current
// streams of their devices: what is enqueued there later may change them again. Small ones of a
// device travel as one packed buffer. Those on the host are handed through as they are, and must
// not change any more.
TELENS_EXPORT std::unique_ptr<HostCopy> copy_to_host(std::vector<at::Tensor> tensors);

using HostCopies = std::function<std::unique_ptr<HostCopy>(std::vector<at::Tensor>)>;

// A vector of int64 on a device, without a wait for the device either.
at::Tensor copy_to_device(std::span<const std::int64_t> numbers, const at::Device& device);

enum class Waiting : std::uint8_t { no, yes };

// Work to be done with tensors once they have arrived, in the order in which they set out. For
// one thread.
template <typename Work>
class Arrivals {
 public:
  struct Arrived {
    Work work;
    std::vector<at::Tensor> tensors;
  };

  explicit Arrivals(HostCopies copies = copy_to_host) : copies_(std::move(copies)) {}

  // True if the tensors are there already.
  bool add(std::vector<at::Tensor> tensors, Work work) {
    under_way_.push_back({std::move(work), copies_(std::move(tensors))});
    return under_way_.back().copy->arrived();
  }

  // Waiting::yes: all of it.
  std::vector<Arrived> take(Waiting waiting) {
    std::vector<Arrived> arrived;
    while (!under_way_.empty()) {
      UnderWay& oldest = under_way_.front();
      if (waiting == Waiting::no && !oldest.copy->arrived()) break;
      std::vector<at::Tensor> tensors = oldest.copy->take();
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
