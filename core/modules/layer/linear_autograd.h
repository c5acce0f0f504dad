// The autograd function of a linear layer: fprop forward, dgrad and wgrad backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/modules/layer/linear_backward.h"

namespace telens {

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
