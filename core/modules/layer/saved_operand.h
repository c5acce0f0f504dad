// An operand on its way from a forward to its backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "core/quantization/quantized_tensor.h"

namespace telens {

// An operand that a forward keeps for its backward: its tensors go through save_for_backward, the
// rest is here.
class SavedOperand {
 public:
  SavedOperand() = default;

  // Appends the tensors that the second GEMM of the tensor reads: the columnwise codes and scales,
  // or the plain tensor.
  SavedOperand(const Operand& operand, std::vector<at::Tensor>& saved);

  // saved: what save_for_backward kept.
  Operand restore(const std::vector<at::Tensor>& saved) const;

 private:
  std::size_t index_ = 0;
  bool has_tensor_scale_ = false;
  std::optional<QuantizedTensor> quantized_;  // without its tensors
};

}  // namespace telens
