// An operand of a GEMM kept for the backward: its tensors go through save_for_backward, the rest
// stands here.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstddef>

#include "core/quantization/quantized_tensor.h"

namespace telens {

class SavedOperand {
 public:
  SavedOperand() = default;

  // Appends the tensors that the second GEMM of the tensor reads: the columnwise codes and scales,
  // or the plain tensor.
  static SavedOperand save(const Operand& operand, torch::autograd::variable_list& saved) {
    SavedOperand kept;
    kept.index_ = saved.size();
    if (const auto* quantized = std::get_if<QuantizedTensor>(&operand)) {
      saved.push_back(quantized->columnwise.codes);
      saved.push_back(quantized->columnwise.scale_inv);
      kept.has_tensor_scale_ = quantized->columnwise.tensor_scale.defined();
      if (kept.has_tensor_scale_) {
        saved.push_back(quantized->columnwise.tensor_scale);
      }
      kept.quantized_ = *quantized;
      kept.quantized_->rowwise = {};
      kept.quantized_->columnwise = {};
    } else {
      saved.push_back(std::get<at::Tensor>(operand));
    }
    return kept;
  }

  Operand restore(const torch::autograd::variable_list& saved) const {
    if (!quantized_) {
      return saved[index_];
    }
    QuantizedTensor quantized = *quantized_;
    quantized.columnwise = {saved[index_], saved[index_ + 1],
                            has_tensor_scale_ ? saved[index_ + 2] : at::Tensor()};
    return quantized;
  }

 private:
  std::size_t index_ = 0;
  bool has_tensor_scale_ = false;
  std::optional<QuantizedTensor> quantized_;  // without its tensors
};

}  // namespace telens
