// Operands of an FP8 attention's GEMMs: decoded codes with one scale per tensor or, for block
// quantizers, in blocks along the GEMM's summed dimension. The block length comes from the scheme
// (core/formats/scheme.h); blocks start at each head and sample. Also the softmax over these codes.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_scores.h"

namespace telens {

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
