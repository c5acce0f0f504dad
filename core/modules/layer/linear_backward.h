// The backward of a linear layer: dgrad, wgrad and the bias gradient of a gradient of its output.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <vector>

#include "core/modules/layer/accumulated_wgrad.h"
#include "core/modules/layer/fused_cast.h"
#include "core/modules/layer/gemm_operands.h"
#include "core/modules/layer/saved_operand.h"

namespace telens {

// The gradients that autograd needs.
struct GradientNeeds {
  bool dgrad = false;
  bool wgrad = false;
  bool bias = false;

  bool any() const { return dgrad || wgrad || bias; }
};

// Everything that the backward needs besides tensors.
struct LinearBackward final : torch::CustomClassHolder {
  std::shared_ptr<GemmLayer> layer;
  ForwardContext context;
  LinearParallel parallel;
  GradientNeeds needs;
  bool fp8_grad = false;
  c10::intrusive_ptr<GradientCast> gradient_cast;
  std::vector<std::int64_t> input_sizes;
  at::ScalarType dtype{};  // the computation's
  at::ScalarType weight_dtype{};
  at::ScalarType bias_dtype{};
  AccumulatedWgrad accumulated;
  at::Tensor delayed_weight;  // wgrad waits for backward_dw; undefined: it is made in the backward
  SavedOperand input;
  bool input_is_shard = false;        // its rows are this rank's
  std::vector<SavedOperand> weights;  // one, or the parts of a weight that are stored apart
};

struct LinearGradients {
  at::Tensor input;  // undefined, as the others: not needed, or waits for backward_dw
  at::Tensor weight;
  at::Tensor bias;
};

// saved: what save_for_backward kept. grad_output: [..., out]. Called below autograd.
LinearGradients compute_gradients(const LinearBackward& backward,
                                  const torch::autograd::variable_list& saved,
                                  const at::Tensor& grad_output);

}  // namespace telens
