#include "core/modules/layer/saved_operand.h"

namespace telens {

SavedOperand::SavedOperand(const Operand& operand, std::vector<at::Tensor>& saved)
    : index_(saved.size()) {
  const auto* quantized = std::get_if<QuantizedTensor>(&operand);
  if (quantized == nullptr) {
    saved.push_back(std::get<at::Tensor>(operand));
    return;
  }
  saved.push_back(quantized->columnwise.codes);
  saved.push_back(quantized->columnwise.scale_inv);
  has_tensor_scale_ = quantized->columnwise.tensor_scale.defined();
  if (has_tensor_scale_) saved.push_back(quantized->columnwise.tensor_scale);
  quantized_ = *quantized;
  quantized_->rowwise = {};
  quantized_->columnwise = {};
}

Operand SavedOperand::restore(const std::vector<at::Tensor>& saved) const {
  if (!quantized_) return saved[index_];
  QuantizedTensor quantized = *quantized_;
  quantized.columnwise = {saved[index_], saved[index_ + 1],
                          has_tensor_scale_ ? saved[index_ + 2] : at::Tensor()};
  return quantized;
}

}  // namespace telens
