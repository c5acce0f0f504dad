// Checks that foreign code that only observes leaves things as they are: the tensors that it is
// shown, and torch's random numbers.
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

// Torch's default generators of the CPU and of one more device. Reading a state waits for nothing:
// that of a GPU's generator lies on the host.
class RandomState {
 public:
  // device: whose generator counts too; nullopt, or the CPU: none. Not while a graph is captured.
  explicit RandomState(std::optional<at::Device> device);

  // Brings back the states where they have changed, and says whether any had.
  bool restore();

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// While it lives, changes in place are counted (tensor._version), which autograd does not do in the
// forwards and backwards of layers. What writes past torch, or through .data, is not seen.
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
