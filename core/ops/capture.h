// Kernels that are captured into a graph (CUDA graphs) and run again with each replay, of which the
// host learns nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace telens::ops {

// True if what is enqueued for x's device now becomes part of a graph instead of running. The
// operator `telens::is_capturing`; false on devices without graphs.
bool is_capturing(const at::Tensor& x);

// True if `is_capturing` could ever be true for tensors of the device: whether it has a kernel for
// such devices.
bool has_graphs(const at::Device& device);

// While it lives, the kernels of `accumulate_...` operators that this thread enqueues, and of the
// amax that their scales come from, look at a word on their device when they run, and do nothing
// where it is 0: the one thing that can still change in a graph. Nothing else may be enqueued
// meanwhile: what an operator returns then may never have been written.
class GateScope {
 public:
  // Lives as long as the graph.
  explicit GateScope(const std::int64_t* word);
  ~GateScope();
  GateScope(const GateScope&) = delete;
  GateScope& operator=(const GateScope&) = delete;

 private:
  const std::int64_t* before_;
};

// For the kernels; nullptr: none.
const std::int64_t* current_gate();
// For kernels that run at once.
inline bool gate_is_shut() { return current_gate() != nullptr && *current_gate() == 0; }

}  // namespace telens::ops
