#include "features/dump_tensors/kept_operands.h"

#include "hooks/tensor_ops.h"

namespace telens::features {

void KeptOperands::keep(TensorName name, const TensorHandle& tensor,
                        std::optional<std::int64_t> first_row, bool evaluation) {
  evaluation_ = evaluation;
  Kept& kept = kept_[static_cast<std::size_t>(name)];
  kept = {.seen = true, .first_row = first_row};
  if (!tensor.defined()) return;
  kept.tensor = tensor;  // a detached tensor may count its writes separately
  kept.version = tensor_ops::get_version(tensor);
}

KeptOperands::Original KeptOperands::find(TensorName name, Gemm gemm) {
  Kept& kept = kept_[static_cast<std::size_t>(name)];
  if (!kept.seen) return {};
  Original original{.state = State::no_high_precision, .first_row = kept.first_row};
  if (kept.tensor.defined()) {
    const bool changed = tensor_ops::get_version(kept.tensor) != kept.version;
    original.state = changed ? State::changed : State::there;
    if (!changed) original.tensor = kept.tensor;
  }
  if (get_gemms(name).second == gemm) kept = {};
  return original;
}

}  // namespace telens::features
