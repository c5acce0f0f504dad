// Checks that foreign observing code does not change the tensors that it is shown or torch's random
// numbers.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/quantization/quantized_tensor.h"

namespace telens {

// The state of torch's default generators for the CPU and for one other device. Reading a state
// does not synchronize: the state of a GPU's generator is on the host.
class RandomState {
 public:
  // device: also covers this device's generator; nullopt, or the CPU, for none. Not during a graph
  // capture.
  explicit RandomState(std::optional<at::Device> device);

  // Restores the states if they have changed; returns true if any had.
  bool restore();

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// Counts in-place changes (tensor._version) while it lives, which autograd does not do in the
// forwards and backwards of layers. Does not detect writes that bypass torch or go through .data.
class Unwritten {
 public:
  Unwritten();

  void add(const at::Tensor& tensor);
  void add(const Operand& operand);

  // True if any of them was written to.
  bool was_written() const;

 private:
  c10::impl::ForceDispatchKeyGuard counting_;
  std::vector<std::pair<at::Tensor, std::uint32_t>> versions_;
};

}  // namespace telens
