// The activation of an MLP: a kernel (core/ops/activation.h) or a composition of LibTorch's
// operators.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "core/base/error.h"
#include "core/modules/layer/fused_cast.h"
#include "core/ops/activation.h"

namespace telens {

// Transformer Engine's activation_params, by name.
using ActivationParameters = std::map<std::string, double>;

// x = (a, b), the halves of the last dimension; s is the sigmoid.
//   glu             s(a) * b
//   clamped_swiglu  a' * s(alpha * a') * (b' + glu_linear_offset), a' = min(a, limit),
//                   b' = b within [-limit, limit]; by default limit 7, alpha 1.702 and offset 1
class MlpActivation {
 public:
  // Throws UsageError that lists all activations, or the parameters of this one.
  MlpActivation(const std::string& name, const ActivationParameters& parameters);

  bool gated() const { return kernel_ == nullptr || kernel_->gated; }
  // The activation kernel, which can quantize its result; nullptr for a composed activation.
  const ops::Activation* kernel() const { return kernel_; }
  // Applies a composed activation, [..., 2n] -> [..., n], in FP32 (FP64 for FP64), rounded once.
  at::Tensor compose(const at::Tensor& x) const;

 private:
  const ops::Activation* kernel_ = nullptr;
  bool clamped_ = false;
  double limit_ = 7.0;
  double alpha_ = 1.702;
  double offset_ = 1.0;
};

// ---- activation functions with their gradients

// Both may be nullptr; not supported for FP64.
struct ActivationCasts {
  FusedCast* forward = nullptr;  // receives the codes; the result is a placeholder
  c10::intrusive_ptr<GradientCast> backward = {};  // quantizes x's gradient for the layer before
};

// [..., n] -> [..., n]; a gated activation halves the last dimension. Differentiable.
TELENS_EXPORT at::Tensor activate(const ops::Activation& activation, const at::Tensor& x,
                                  const ActivationCasts& casts = {});

}  // namespace telens
