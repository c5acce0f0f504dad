// Adds wgrad to main_grad (main_grad.h) instead of returning it to autograd.
#pragma once

#include <vector>

#include "core/modules/layer/gemm_operands.h"

namespace telens {

struct AccumulatedWgrad {
  std::vector<at::Tensor> weights =
      {};                  // parameters that divide wgrad's rows; empty: not accumulated
  bool overwrite = false;  // wgrad replaces main_grad
  at::ScalarType dtype{};  // of the computation

  explicit operator bool() const { return !weights.empty(); }
};

// Returns the parameters of a weight: the weight or its parts.
std::vector<at::Tensor> get_parameters(const Weight& weight);

// Computes wgrad, adds it to the parameters' main_grad, and returns the gradient for autograd:
// zeros or undefined. The GEMM adds directly into a single FP32 buffer. For several buffers, BF16
// and FP16, an FP32 product is added and rounded once. The same happens if the session may ever
// inspect this layer's wgrad, in every iteration, so that inspecting changes no bit.
at::Tensor accumulate_wgrad(GemmLayer& layer, const ForwardContext& context,
                            const AccumulatedWgrad& target, const Operand& gradient,
                            const Operand& input, const GemmOverlapNote* overlap = nullptr);

}  // namespace telens
