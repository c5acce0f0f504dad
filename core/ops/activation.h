// Activation functions as operators `telens::activation_forward` and `activation_backward`. They
// are not differentiable: see core/modules/fused/mlp_activation.h.
//
// x is BF16, FP16 or FP32 with any strides, and may be empty. Arithmetic is FP32, and each stored
// value is rounded once to x's dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "core/base/error.h"
#include "core/ops/activation_formula.h"

namespace telens::ops {

// A gated activation halves the last dimension: function(first half) * second half.
struct Activation {
  std::string_view name;
  ActivationFunction function;
  bool gated;
};

inline constexpr std::array kActivations{
    Activation{"gelu", ActivationFunction::gelu, false},
    Activation{"geglu", ActivationFunction::gelu, true},
    Activation{"qgelu", ActivationFunction::qgelu, false},
    Activation{"qgeglu", ActivationFunction::qgelu, true},
    Activation{"relu", ActivationFunction::relu, false},
    Activation{"reglu", ActivationFunction::relu, true},
    Activation{"srelu", ActivationFunction::srelu, false},
    Activation{"sreglu", ActivationFunction::srelu, true},
    Activation{"silu", ActivationFunction::silu, false},
    Activation{"swiglu", ActivationFunction::silu, true},
};

// Throws UsageError naming all activations.
TELENS_EXPORT const Activation& activation_from_name(std::string_view name);

// [..., n] -> [..., n]; if gated, [..., 2n] -> [..., n].
TELENS_EXPORT at::Tensor activation_forward(const at::Tensor& x, const Activation& activation);

// grad: the gradient of the forward's result. Returns the gradient of x.
TELENS_EXPORT at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& x,
                                             const Activation& activation);

// Runs the checks that every backend needs. Returns the sizes of the result.
TELENS_EXPORT std::vector<std::int64_t> check_activation(const at::Tensor& x,
                                                         const Activation& activation);
TELENS_EXPORT void check_activation_gradient(const at::Tensor& grad, const at::Tensor& x,
                                             const Activation& activation);

}  // namespace telens::ops
