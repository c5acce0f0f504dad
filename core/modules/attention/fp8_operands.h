// The operands of an FP8 attention's products: values of codes under one scale a tensor or, where
// the quantizers have a scale a block, of blocks along what each product adds over. A scheme's row
// (core/formats/scheme.h) has the length of a block; blocks begin with each head and sample.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_scores.h"

namespace telens {

// FP32, [batch, heads, positions, size]. One tensor where it has one scale; undefined where the
// pass has no such product.
struct CodedRows {
  at::Tensor over_size;       // for products that add over the size of a head
  at::Tensor over_positions;  // for those that add over queries or keys
};

// Values of codes, without the scale of a tensor that has one.
struct CodedHeads {
  CodedRows query;       // [batch, heads, seq_q, size]
  CodedRows key;         // [batch, groups, seq_kv, size]
  CodedRows value;       // [batch, groups, seq_kv, value size]
  at::Tensor scale_inv;  // FP32, 1 element; blocks: 1
};

struct CodedTensor {
  CodedRows rows;
  at::Tensor scale_inv;  // the same
};

// Autograd keeps this of an attention's inputs: codes and their scale; blocks: the tensors as they
// came, of which the backward makes the codes of its own products.
struct KeptInputs {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  at::Tensor scale_inv;  // blocks: undefined
};

KeptInputs cast_inputs(const QueryKeyValueHeads& heads, const std::shared_ptr<Quantizer>& qkv);

// The operands of Q K^T and of softmax V.
CodedHeads make_forward_operands(const KeptInputs& inputs, const Quantizer& qkv);
// Those of Q K^T, of the output's gradient with V, and of the scores' gradient with K and Q.
CodedHeads make_backward_operands(const KeptInputs& inputs, const Quantizer& qkv);

// gradient: [batch, heads, seq_q, value size]
CodedTensor cast_output_gradient(const at::Tensor& gradient, const std::shared_ptr<Quantizer>& d_o);

// FP32: the output that a backward kept, codes where scale_inv is defined.
at::Tensor get_kept_output(const at::Tensor& kept, const at::Tensor& scale_inv,
                           const AttentionQuantizers& quantizers);

// The values of codes, uint8 of any shape, in FP32.
at::Tensor decoded(const at::Tensor& codes, FormatId format);

}  // namespace telens
