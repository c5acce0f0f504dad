// FP8 attention, with the same formulas on every device:
//
//   P = Q8 K8^T * scale + bias    Q, K and V are cast under one scale
//   S = softmax(P), dropped       cast before it meets V
//   O = S8 V8                     cast
//   dO                            cast
//   dV = S8^T dO8,  dS = dO8 V8^T
//   dP = S (dS - sum(S dS))       cast; S as it was before its cast
//   dQ = dP8 K8 * scale,  dK = dP8^T Q8 * scale;  they and dV are cast under one scale
//
// GEMMs multiply decoded codes, which are exact in TF32, and sum in FP32; scales are applied
// afterwards. Casts start from unrounded FP32 values. Heads that share a key sum their gradients of
// the key before the cast. The sum in dP uses O8 dO8 if sums_output_codes is set.
//
// Quantizers with block scales (fp8_operands.h) quantize only Q, K, V and dO, separately for each
// GEMM, in blocks along its summed dimension. S and dP stay in FP32, O and the input gradients have
// the inputs' dtype, and the sum in dP uses the returned O and the given dO.
#pragma once

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_rules.h"

namespace telens {

// Returns [batch, heads, seq_q, value size] in query's dtype (BF16, FP16 or FP32): the dequantized
// O. Differentiable once in query, key, value, bias and offset; saves codes and, for small
// attentions, dropout's choices, and recomputes scores in the backward. Sets rules.choice.
at::Tensor attend_in_fp8(const QueryKeyValueHeads& heads, const AttentionRules& rules,
                         const Fp8Attention& fp8);

// Attaches the codes to the attention's output, of any layout, if the forward requests it
// (Fp8Attention::attaches_output). Returns the output unchanged without FP8.
at::Tensor with_codes(const at::Tensor& output, const std::optional<Fp8Attention>& fp8);

// Throws ShapeError for FP64.
void check_dtype_for_fp8(const at::Tensor& query, const Fp8Attention& fp8);

// Returns the dequantized operands of the scores in FP32, for features that inspect the scores.
// Records no amax.
QueryKeyValueHeads cast_heads(const QueryKeyValueHeads& heads, const Fp8Attention& fp8);

}  // namespace telens
