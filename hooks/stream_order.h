// Orders streams of a device that use the same memory. Nothing here makes the host wait. On devices
// without streams, nothing happens.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <vector>

#include "core/base/error.h"

namespace telens {

TELENS_EXPORT c10::Stream current_stream(const at::Device& device);

// Makes the current stream of its device wait for all work that is enqueued on the stream now.
TELENS_EXPORT void wait_for(const c10::Stream& stream);

// The streams on which data was created that another stream will use.
class TELENS_EXPORT StreamSet {
 public:
  // Adds the device's current stream.
  void add(const at::Device& device);
  // Waits for each stream, as in wait_for(), and clears the set.
  void join();

 private:
  std::vector<c10::Stream> streams_;
};

}  // namespace telens
