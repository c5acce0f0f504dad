// Streams of devices, and copies between devices and the host. On devices without streams, ordering
// does nothing. No LibTorch: hooks/libtorch/streams.cpp implements it.
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

// ---- the order of streams that use the same memory; only StreamEvent makes the host wait

TELENS_EXPORT StreamHandle current_stream(DeviceId device);

// Makes the current stream of its device wait for all work that is enqueued on the stream now.
TELENS_EXPORT void wait_for(const StreamHandle& stream);

// The streams on which data was created that another stream will use.
class TELENS_EXPORT StreamSet {
 public:
  // Adds the device's current stream.
  void add(DeviceId device);
  // Waits for each stream, as in wait_for(), and clears the set.
  void join();

 private:
  std::vector<StreamHandle> streams_;
};

// A point in the work of a device's current stream, for which the host can wait.
class StreamEvent {
 public:
  // Records the point.
  explicit StreamEvent(DeviceId device);
  ~StreamEvent();
  void synchronize() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ---- asynchronous copies between a device and the host; training does not wait for them, and the
// data that has arrived is used at the end of a later iteration

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
    pending_.push_back({std::move(work), copies_(std::move(tensors))});
    return pending_.back().copy->arrived();
  }

  // Waiting::yes: waits for all work.
  std::vector<Arrived> take(Waiting waiting) {
    std::vector<Arrived> arrived;
    while (!pending_.empty()) {
      PendingCopy& oldest = pending_.front();
      if (waiting == Waiting::no && !oldest.copy->arrived()) break;
      std::vector<TensorHandle> tensors = oldest.copy->take();
      arrived.push_back({std::move(oldest.work), std::move(tensors)});
      pending_.pop_front();
    }
    return arrived;
  }

 private:
  struct PendingCopy {
    Work work;
    std::unique_ptr<HostCopy> copy;
  };

  HostCopies copies_;
  std::deque<PendingCopy> pending_;
};

}  // namespace telens
