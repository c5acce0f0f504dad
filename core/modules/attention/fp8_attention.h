// Attention whose tensors are cast to FP8, on every device by the same formulas:
//
//   P = Q8 K8^T * scale + bias    Q, K and V are cast under one scale
//   S = softmax(P), dropped       cast before it meets V
//   O = S8 V8                     cast
//   dO                            cast
//   dV = S8^T dO8,  dS = dO8 V8^T
//   dP = S (dS - sum(S dS))       cast; S as it was before its cast
//   dQ = dP8 K8 * scale,  dK = dP8^T Q8 * scale;  they and dV are cast under one scale
//
// Products multiply the values of codes, which TF32 holds exactly, and add in FP32; scales are
// multiplied in afterwards. What is cast is FP32, rounded by nothing before. Heads that share a key
// add their gradients of it before the cast. The sum in dP is that of O8 dO8 where
// sums_output_codes is set.
//
// Quantizers with a scale a block (fp8_operands.h) cast Q, K, V and dO alone, for each product in
// blocks along what it adds over; S and dP stay in FP32, O and the gradients of the inputs get
// their dtype, and the sum in dP is that of O dO, both as they are outside.
#pragma once

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_rules.h"

namespace telens {

// [batch, heads, seq_q, value size] in query's dtype, BF16, FP16 or FP32; values of O's codes.
// Differentiable once in query, key, value, bias and offset; keeps codes, and small attentions
// dropout's choices, and makes scores anew in the backward. rules.choice takes what it ran in.
at::Tensor attend_in_fp8(const QueryKeyValueHeads& heads, const AttentionRules& rules,
                         const Fp8Attention& fp8);

// The attention's output in any layout, carrying the codes of its values where the forward hands
// them on (Fp8Attention::hands_output). Without FP8 it is returned as it is.
at::Tensor with_codes(const at::Tensor& output, const std::optional<Fp8Attention>& fp8);

// Throws ShapeError for FP64.
void check_dtype_for_fp8(const at::Tensor& query, const Fp8Attention& fp8);

// The values that the scores are made of, in FP32, for features that look at the scores. Adds
// nothing to an amax history.
QueryKeyValueHeads cast_heads(const QueryKeyValueHeads& heads, const Fp8Attention& fp8);

}  // namespace telens
