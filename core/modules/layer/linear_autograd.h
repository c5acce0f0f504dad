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
  bool fp8_output = false;  // the output is rounded to FP8 values
  bool fp8_grad = false;    // the input's gradient is rounded to FP8 values
  // wgrad is added to the weight's main_grad (main_grad.h); in a first micro-batch it replaces it.
  bool accumulates_wgrad = false;
  // wgrad waits in the layer until the module's backward_dw.
  bool delays_wgrad = false;
  bool training = true;  // the module's mode (torch::nn::Module::is_training)
  // True for a gathering layer: the input has been gathered, and the sum over ranks of its gradient
  // is left to autograd (gather_sequence.h).
  bool input_is_whole = false;
  // The cast of the output's gradient, if the backward of what the output goes into can cast.
  c10::intrusive_ptr<GradientCast> gradient_cast = {};
};

struct LinearArguments {
  const at::Tensor& input;  // [..., in], of the dtype in which the layer computes
  const Weight& weight;     // [out, in]
  const at::Tensor& bias;   // [out] or undefined
  const LinearCall& call;
  std::shared_ptr<GemmLayer> layer;
  ForwardContext context;
  const QuantizedTensor* codes = nullptr;  // the input's, which then is a placeholder
  // The codes that the input came with, which are taken in place of a cast.
  const QuantizedTensor* carried = nullptr;
};

// [..., out], of the input's dtype.
at::Tensor apply_linear(const LinearArguments& arguments);

// The forward alone, for a function of autograd that has other layers' too. Called below autograd.
struct LinearForward {
  at::Tensor output;
  std::vector<at::Tensor> saved;                // for save_for_backward, and
  c10::intrusive_ptr<LinearBackward> backward;  // nullptr: no gradient is needed
};
LinearForward run_linear(const LinearArguments& arguments, GradientNeeds needs);

}  // namespace telens
