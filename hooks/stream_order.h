// Streams of a device that work with the same memory, one after the other. Nothing here makes the
// host wait, and on devices without streams nothing happens.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <vector>

#include "core/base/error.h"

namespace telens {

TELENS_EXPORT c10::Stream current_stream(const at::Device& device);

// The current stream of its device goes on after all that the stream has to do at this moment.
TELENS_EXPORT void wait_for(const c10::Stream& stream);

// Those on which something was made that another one is to use.
class TELENS_EXPORT StreamSet {
 public:
  // The device's current one.
  void add(const at::Device& device);
  // Waits for each of them, as above, and forgets them.
  void join();

 private:
  std::vector<c10::Stream> streams_;
};

}  // namespace telens
