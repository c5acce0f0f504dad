// FP8 casts fused into the producing kernel (norm, activation). The high-precision tensor is never
// materialized: autograd receives a placeholder, and the codes are passed separately.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/FunctionRef.h>
#include <torch/custom_class.h>

#include <optional>

#include "core/base/names.h"
#include "core/modules/shared/forward_context.h"
#include "core/ops/fused_quantize.h"

namespace telens {

// The fused cast of an activation.
struct FusedCast {
  ops::KnownScale scale;
  ops::OrientedCodes codes = {};  // output
};

// Creates an activation. If `cast` is nullptr, returns the tensor; otherwise fills cast->codes and
// returns a placeholder.
using MakeActivation = c10::function_ref<at::Tensor(FusedCast* cast)>;

// The fused cast of the gradient of a layer's output, by the backward of the following operation.
// Both backwards share it. Constant after the forward: several backwards through the graph may run
// concurrently.
struct GradientCast final : torch::CustomClassHolder {
  // The layer's request, set in its forward; every backward then passes a placeholder to the layer.
  // nullopt if the layer requires the gradient itself.
  std::optional<ops::KnownScale> scale;
  std::optional<at::ScalarType> bias_dtype;  // nullopt if no bias gradient is required
};

// Quantized output gradient, attached to the placeholder tensor as backend metadata, so that it
// lives as long as the placeholder.
struct FusedGradient final : c10::BackendMeta {
  QuantizedTensor codes;
  at::Tensor bias;  // the bias gradient; undefined if not requested
};

// Returns a placeholder with the gradient attached.
at::Tensor placeholder_with(c10::intrusive_ptr<FusedGradient> gradient, at::IntArrayRef sizes,
                            const at::Tensor& like);
// Returns the gradient attached to a placeholder, or nullptr.
const FusedGradient* fused_gradient(const at::Tensor& tensor);

// Returns the scale for casting a layer's activation or gradient inside the producing kernel.
// Returns nullopt unless delayed scaling quantizes it for every required GEMM and no feature
// accesses it.
std::optional<ops::KnownScale> fused_cast_scale(const ForwardContext& context, TensorName name,
                                                bool first_needed, bool second_needed);

// Returns a tensor of zeros that stores one element.
at::Tensor placeholder(at::IntArrayRef sizes, const at::Tensor& like);

}  // namespace telens
