// The backward of a linear layer: dgrad, wgrad and the bias gradient from the gradient of its
// output.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "core/modules/layer/accumulated_wgrad.h"
#include "core/modules/layer/fused_cast.h"
#include "core/modules/layer/gemm_operands.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

// An operand saved for the backward. Its tensors are passed through save_for_backward; the rest is
// stored here.
class SavedOperand {
 public:
  SavedOperand() = default;

  // Appends the tensors that the second GEMM reads to `saved`: the columnwise codes and scales, or
  // the plain tensor.
  SavedOperand(const Operand& operand, std::vector<at::Tensor>& saved);

  // saved: the unpacked tensors of save_for_backward.
  Operand restore(const std::vector<at::Tensor>& saved) const;

 private:
  std::size_t index_ = 0;
  bool has_tensor_scale_ = false;
  std::optional<QuantizedTensor> quantized_;  // without its tensors
};

// The gradients that autograd requires.
struct GradientNeeds {
  bool dgrad = false;
  bool wgrad = false;
  bool bias = false;

  bool any() const { return dgrad || wgrad || bias; }
};

// The non-tensor state of the backward.
struct LinearBackward final : torch::CustomClassHolder {
  std::shared_ptr<GemmLayer> layer;
  ForwardContext context;
  LinearParallel parallel;
  GradientNeeds needs;
  bool fp8_grad = false;
  c10::intrusive_ptr<GradientCast> gradient_cast;
  std::vector<std::int64_t> input_sizes;
  at::ScalarType dtype{};  // of the computation
  at::ScalarType weight_dtype{};
  at::ScalarType bias_dtype{};
  AccumulatedWgrad accumulated;
  at::Tensor delayed_weight;  // undefined unless wgrad is delayed to backward_dw
  SavedOperand input;
  bool input_is_shard = false;        // contains only this rank's rows
  std::vector<SavedOperand> weights;  // the weight, or its separately stored parts
};

struct LinearGradients {
  at::Tensor input;  // each is undefined if not needed or delayed
  at::Tensor weight;
  at::Tensor bias;
};

// Computes the gradients. saved: the unpacked tensors of save_for_backward. grad_output: [...,
// out]. Call below autograd.
LinearGradients compute_gradients(const LinearBackward& backward,
                                  const torch::autograd::variable_list& saved,
                                  const at::Tensor& grad_output);

}  // namespace telens
