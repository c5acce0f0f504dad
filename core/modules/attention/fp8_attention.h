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
// Quantizers with block scales quantize only Q, K, V and dO, separately for each GEMM, in blocks
// along its summed dimension. S and dP stay in FP32, O and the input gradients have the inputs'
// dtype, and the sum in dP uses the returned O and the given dO.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_scores.h"

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

// ---- Operands of the GEMMs: decoded codes with one scale per tensor or, for block quantizers, in
// blocks along the GEMM's summed dimension. The block length comes from the scheme
// (core/formats/scheme.h); blocks start at each head and sample.

// FP32, [batch, heads, positions, size]. Both are the same tensor under per-tensor scaling;
// undefined if the pass does not have such a GEMM.
struct CodedRows {
  at::Tensor over_size;       // for GEMMs that sum over the head size
  at::Tensor over_positions;  // for GEMMs that sum over queries or keys
};

// Decoded codes without the per-tensor scale.
struct CodedHeads {
  CodedRows query;       // [batch, heads, seq_q, size]
  CodedRows key;         // [batch, groups, seq_kv, size]
  CodedRows value;       // [batch, groups, seq_kv, value size]
  at::Tensor scale_inv;  // FP32, 1 element; 1 for blocks
};

struct CodedTensor {
  CodedRows rows;
  at::Tensor scale_inv;  // as above
};

// The saved inputs of an attention: codes and their scale, or for block scaling the original
// tensors, which the backward quantizes for its GEMMs.
struct KeptInputs {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor scale_inv;  // undefined for blocks
};

KeptInputs cast_inputs(const QueryKeyValueHeads& heads, const std::shared_ptr<Quantizer>& qkv);

// Returns the operands of Q K^T and of softmax V.
CodedHeads make_forward_operands(const KeptInputs& inputs, const Quantizer& qkv);
// Returns the backward's operands: of Q K^T, of the output gradient with V, and of the scores'
// gradient with K and Q.
CodedHeads make_backward_operands(const KeptInputs& inputs, const Quantizer& qkv);

// gradient: [batch, heads, seq_q, value size]
CodedTensor cast_output_gradient(const at::Tensor& gradient, const std::shared_ptr<Quantizer>& d_o);

// Returns the saved output in FP32; it is stored as codes if scale_inv is defined.
at::Tensor get_kept_output(const at::Tensor& kept, const at::Tensor& scale_inv,
                           const AttentionQuantizers& quantizers);

// Decodes codes (uint8 of any shape) to FP32.
at::Tensor decoded(const at::Tensor& codes, FormatId format);

}  // namespace telens
