// Layer and RMS normalization with their gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "core/modules/layer/fused_cast.h"
#include "core/ops/normalization.h"

namespace telens {

enum class Normalization : std::uint8_t { layer_norm, rms_norm };

// Parses "LayerNorm" or "RMSNorm"; throws UsageError for anything else.
TELENS_EXPORT Normalization normalization_from_name(std::string_view name);

// x [..., *weight.sizes()] -> same shape and dtype. bias: like weight, or undefined; RMS has none.
// Differentiable in all three. x is BF16, FP16, FP32 or FP64. With a cast (not for FP64), fills the
// cast's codes and returns a placeholder.
TELENS_EXPORT at::Tensor normalize(Normalization normalization, const at::Tensor& x,
                                   const at::Tensor& weight, const at::Tensor& bias,
                                   const ops::NormOptions& options, FusedCast* cast = nullptr);

}  // namespace telens
