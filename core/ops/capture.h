// Kernels that are captured into a graph (CUDA graphs) and run again on each replay. The host does
// not observe replays.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace telens::ops {

// Returns true if work that is enqueued for x's device now becomes part of a graph instead of
// running. The operator `telens::is_capturing`; false on devices without graphs.
bool is_capturing(const at::Tensor& x);

// Returns true if `is_capturing` can ever be true for tensors on the device, that is, if it has a
// kernel for such devices.
bool has_graphs(const at::Device& device);

// During its lifetime, the kernels of `accumulate_...` operators that this thread enqueues, and the
// kernels that compute the amax for their scales, read a word on their device when they run and do
// nothing if it is 0. The word is the only thing that can still change in a graph. Enqueue nothing
// else in this scope: the results of other operators may never be written.
class GateScope {
 public:
  // `word` must live as long as the graph.
  explicit GateScope(const std::int64_t* word);
  ~GateScope();
  GateScope(const GateScope&) = delete;
  GateScope& operator=(const GateScope&) = delete;

 private:
  const std::int64_t* before_;
};

// For the kernels. Returns nullptr if no gate is set.
const std::int64_t* current_gate();
// For kernels that run at once.
inline bool gate_is_shut() { return current_gate() != nullptr && *current_gate() == 0; }

}  // namespace telens::ops
