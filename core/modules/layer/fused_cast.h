// FP8 casts fused into the producing kernel (norm, activation). The high-precision tensor is never
// materialized; autograd sees a placeholder, the codes travel beside it.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/FunctionRef.h>
#include <torch/custom_class.h>

#include <optional>

#include "core/base/names.h"
#include "core/modules/shared/forward_context.h"
#include "core/ops/fused_quantize.h"

namespace telens {

// The cast of an activation, by the norm or the activation function that makes it.
struct FusedCast {
  ops::KnownScale scale;
  ops::OrientedCodes codes = {};  // to be filled
};

// Makes an activation: without a cast the tensor, with one a placeholder, and the cast's codes.
using MakeActivation = c10::function_ref<at::Tensor(FusedCast* cast)>;

// The cast of the gradient of a layer's output, by the backward of what the output went into. The
// two backwards share it. It does not change after the forward: several backwards of one graph may
// run at a time.
struct GradientCast final : torch::CustomClassHolder {
  // The layer's request, made in its forward: every backward then hands it a placeholder. nullopt:
  // the gradient itself.
  std::optional<ops::KnownScale> scale;
  std::optional<at::ScalarType> bias_dtype;  // nullopt: no gradient of the bias
};

// Quantized output gradient, attached to the placeholder tensor as backend metadata, so that it
// lives as long as the placeholder.
struct FusedGradient final : c10::BackendMeta {
  QuantizedTensor codes;
  at::Tensor bias;  // the bias gradient; undefined: not requested
};

// A placeholder that carries the gradient.
at::Tensor placeholder_with(c10::intrusive_ptr<FusedGradient> gradient, at::IntArrayRef sizes,
                            const at::Tensor& like);
// The gradient that a placeholder carries; nullptr for other tensors.
const FusedGradient* fused_gradient(const at::Tensor& tensor);

// The scale for casting a layer's activation or gradient inside the producing kernel: where delayed
// scaling quantizes it for every GEMM that is needed, and the plan lets no feature touch it.
std::optional<ops::KnownScale> fused_cast_scale(const ForwardContext& context, TensorName name,
                                                bool first_needed, bool second_needed);

// A tensor of zeros with one element of memory.
at::Tensor placeholder(at::IntArrayRef sizes, const at::Tensor& like);

}  // namespace telens
