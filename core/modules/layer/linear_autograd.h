// The autograd function of a linear layer: fprop forward (linear_autograd.cpp), dgrad, wgrad and
// the bias gradient backward (linear_backward.cpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "core/modules/layer/fused_cast.h"
#include "core/modules/layer/gemm_operands.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

// ---- the backward

// A wgrad that is added to main_grad (main_grad.h) instead of being returned to autograd.
struct AccumulatedWgrad {
  // The parameters that divide wgrad's rows; empty if it is not accumulated.
  std::vector<at::Tensor> weights = {};
  bool overwrite = false;  // wgrad replaces main_grad
  at::ScalarType dtype{};  // of the computation

  explicit operator bool() const { return !weights.empty(); }
};

// Returns the parameters of a weight: the weight or its parts.
std::vector<at::Tensor> get_parameters(const Weight& weight);

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

// ---- the forward

struct LinearCall {
  std::optional<bool> is_first_microbatch;
  bool fp8_output = false;  // round the output to FP8
  bool fp8_grad = false;    // round the input's gradient to FP8
  // Add wgrad to the weight's main_grad (main_grad.h); the first micro-batch replaces it.
  bool accumulates_wgrad = false;
  // Compute wgrad in the module's backward_dw.
  bool delays_wgrad = false;
  bool training = true;  // the module's mode (torch::nn::Module::is_training)
  // The input of a gathering layer is already gathered; autograd sums its gradient over ranks
  // (core/distributed/collectives.h).
  bool input_is_whole = false;
  // The fused cast of the output's gradient if the following operation supports it; else nullptr.
  c10::intrusive_ptr<GradientCast> gradient_cast = {};
};

struct LinearArguments {
  const at::Tensor& input;  // [..., in], in the computation's dtype
  const Weight& weight;     // [out, in]
  const at::Tensor& bias;   // [out] or undefined
  const LinearCall& call;
  std::shared_ptr<GemmLayer> layer;
  ForwardContext context;
  const QuantizedTensor* codes = nullptr;  // of a fused cast; `input` is then a placeholder
  // The payload of the input, reused instead of a cast; nullptr if there is none.
  const QuantizedTensor* carried = nullptr;
};

// Returns [..., out] in the input's dtype.
at::Tensor apply_linear(const LinearArguments& arguments);

// Runs only the forward, for autograd functions that contain several layers. Call below autograd.
struct LinearForward {
  at::Tensor output;
  std::vector<at::Tensor> saved;                // for save_for_backward
  c10::intrusive_ptr<LinearBackward> backward;  // nullptr if no gradient is needed
};
LinearForward run_linear(const LinearArguments& arguments, GradientNeeds needs);

}  // namespace telens
