// Orders streams of a device that use the same memory. Nothing here makes the host wait. On devices
// without streams, nothing happens. No LibTorch: hooks/libtorch/streams.cpp implements it.
#pragma once

#include <memory>
#include <vector>

#include "core/base/tensor_handle.h"

namespace telens {

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

}  // namespace telens
