// wgrad that is added to main_grad (main_grad.h) instead of being returned to autograd.
#pragma once

#include <vector>

#include "core/modules/layer/gemm_operands.h"

namespace telens {

struct AccumulatedWgrad {
  std::vector<at::Tensor> weights = {};  // the parameters, which divide wgrad's rows; {}: returned
  bool overwrite = false;                // wgrad replaces what is in main_grad
  at::ScalarType dtype{};                // the computation's

  explicit operator bool() const { return !weights.empty(); }
};

// The parameters of a weight: itself, or its parts.
std::vector<at::Tensor> get_parameters(const Weight& weight);

// Multiplies gradient and input, adds the product to the main_grad of each parameter, and returns
// what autograd gets as the weight's gradient: zeros or nothing. Into one FP32 buffer the GEMM adds
// by itself. Into several, or into BF16 or FP16, a product in FP32 is added and rounded once; as
// for a layer whose wgrad the session may ever inspect, in every iteration, so that inspecting
// changes no bit.
at::Tensor accumulate_wgrad(GemmLayer& layer, const ForwardContext& context,
                            const AccumulatedWgrad& target, const Operand& gradient,
                            const Operand& input, const GemmOverlapNote* overlap = nullptr);

}  // namespace telens
