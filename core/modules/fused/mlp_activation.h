// The activation of an MLP: one of the kernels' (core/ops/activation.h), or one that is composed of
// LibTorch's operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "core/base/error.h"
#include "core/ops/activation.h"

namespace telens {

// Transformer Engine's activation_params: numbers by name.
using ActivationParameters = std::map<std::string, double>;

// x = (a, b) in halves of the last dimension; s is the sigmoid.
//   glu             s(a) * b
//   clamped_swiglu  a' * s(alpha * a') * (b' + glu_linear_offset), a' = min(a, limit),
//                   b' = b within [-limit, limit]; by default limit 7, alpha 1.702 and offset 1
class MlpActivation {
 public:
  // Throws UsageError naming all activations, or the parameters that this one takes.
  MlpActivation(const std::string& name, const ActivationParameters& parameters);

  bool gated() const { return kernel_ == nullptr || kernel_->gated; }
  // The kernels' activation, which casts its result; nullptr for a composed one.
  const ops::Activation* kernel() const { return kernel_; }
  // [..., 2n] -> [..., n] of a composed one, in FP32 (FP64 for FP64) and rounded once.
  at::Tensor compose(const at::Tensor& x) const;

 private:
  const ops::Activation* kernel_ = nullptr;
  bool clamped_ = false;
  double limit_ = 7.0;
  double alpha_ = 1.702;
  double offset_ = 1.0;
};

}  // namespace telens
