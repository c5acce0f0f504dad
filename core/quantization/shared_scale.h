// Shares one cast's scale between layers. If layer B receives values that layer A has already
// rounded to FP8, B quantizes with A's scale: the codes are then exact and nothing is rounded
// twice.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/quantization/quantizer.h"

namespace telens {

// The scale most recently published by each thread and backward pass. Thread-safe. A module may run
// on several threads. The forwards of A and B run on one thread, and so do their backwards, but
// several backwards may share a thread. Each reader sees only the scale of its own pass.
class TELENS_EXPORT SharedScale {
 public:
  // Publishes `scale` (FP32, 1 element) for the current thread and pass.
  void publish(const at::Tensor& scale);
  // Removes the scale of the current thread and pass.
  void clear() { publish({}); }
  // Returns the scale of the current thread and pass, or an undefined tensor if there is none.
  at::Tensor get() const;

 private:
  struct Pass {
    std::thread::id thread;
    std::int64_t backward;  // autograd's graph task; -1 in a forward
    bool operator==(const Pass&) const = default;
  };
  struct Entry {
    Pass pass;
    at::Tensor scale;
  };
  static Pass current_pass();

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // oldest first
};

// Returns a quantizer that uses the scale in `shared` at the time of the cast and records no amax.
// If `shared` is empty it delegates to `fallback`, which must have per-tensor scaling.
std::shared_ptr<Quantizer> use_shared_scale(std::shared_ptr<Quantizer> fallback,
                                            std::shared_ptr<const SharedScale> shared);

}  // namespace telens
