// The backward of a linear layer: dgrad, wgrad and the bias's gradient, and what its forward keeps
// for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/modules/fused_cast.h"
#include "core/modules/gemm_operands.h"

namespace telens {

// The gradients that autograd needs.
struct LinearNeeds {
  bool dgrad = false;
  bool wgrad = false;
  bool bias = false;

  bool any() const { return dgrad || wgrad || bias; }
};

// An operand kept for the backward: its tensors go through save_for_backward, the rest is here.
class SavedOperand {
 public:
  SavedOperand() = default;

  // Appends the tensors that the second GEMM of the tensor reads: the columnwise codes and scales,
  // or the plain tensor.
  SavedOperand(const Operand& operand, torch::autograd::variable_list& saved);

  Operand restore(const torch::autograd::variable_list& saved) const;

 private:
  std::size_t index_ = 0;
  bool has_tensor_scale_ = false;
  std::optional<QuantizedTensor> quantized_;  // without its tensors
};

// Everything that the backward needs besides tensors.
struct LinearBackward final : torch::CustomClassHolder {
  std::shared_ptr<GemmLayer> layer;
  ForwardContext context;
  LinearParallel parallel;
  LinearNeeds needs;
  bool fp8_grad = false;
  c10::intrusive_ptr<GradientCast> gradient_cast;
  std::vector<std::int64_t> input_sizes;
  at::ScalarType dtype{};  // the computation's
  at::ScalarType weight_dtype{};
  at::ScalarType bias_dtype{};
  at::Tensor accumulated_weight;  // wgrad is added to its main_grad; undefined: wgrad is returned
  bool first_microbatch = false;
  SavedOperand input;
  bool input_is_shard = false;  // its rows are this rank's
  SavedOperand weight;
};

// [..., in], [out, in] and [out]; undefined where LinearNeeds has no use for it.
struct LinearGradients {
  at::Tensor input;
  at::Tensor weight;
  at::Tensor bias;
};

// `saved`: the tensors that the forward saved, with those that SavedOperand appended. grad_output
// is [..., out]. Throws UsageError naming the layer for a gradient that it cannot take.
LinearGradients linear_gradients(const LinearBackward& backward,
                                 const torch::autograd::variable_list& saved,
                                 const at::Tensor& grad_output);

}  // namespace telens
