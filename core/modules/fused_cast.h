// Casts to FP8 that are left to what makes a tensor, which then is never written in high precision:
// in its place goes a placeholder, for the autograd graph, and beside it go the codes.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/FunctionRef.h>
#include <torch/custom_class.h>

#include <optional>

#include "core/base/names.h"
#include "core/modules/layer_pass.h"
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
  // What the layer wants, said in its forward: every backward then hands it a placeholder. nullopt:
  // the gradient itself.
  std::optional<ops::KnownScale> scale;
  std::optional<at::ScalarType> bias_dtype;  // nullopt: no gradient of the bias
};

// What a layer gets in place of the gradient of its output. It hangs on the placeholder: whoever
// keeps that, to run a part of the backward later, keeps it too.
struct MadeGradient final : c10::BackendMeta {
  QuantizedTensor codes;
  at::Tensor bias;  // its gradient; undefined: not wanted
};

// A placeholder with `made` on it, and what hangs on a tensor; nullptr: nothing.
at::Tensor placeholder_of(c10::intrusive_ptr<MadeGradient> made, at::IntArrayRef sizes,
                          const at::Tensor& like);
const MadeGradient* made_gradient_on(const at::Tensor& tensor);

// The scale for casting a layer's activation or gradient before anybody has seen it: where delayed
// scaling quantizes it for every GEMM that is needed, and the plan lets no feature touch it.
std::optional<ops::KnownScale> scale_of_fused_cast(const LayerPass& pass, TensorName name,
                                                   bool first_needed, bool second_needed);

// A tensor of zeros with one element of memory.
at::Tensor placeholder(at::IntArrayRef sizes, const at::Tensor& like);

}  // namespace telens
