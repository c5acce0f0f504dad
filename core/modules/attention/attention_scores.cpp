#include "core/modules/attention/attention_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/modules/attention/attention_choice.h"
#include "core/modules/attention/attention_kernels.h"
#include "core/modules/attention/score_block.h"
#include "core/ops/device_traits.h"

namespace telens {
namespace {

// Returns is_causal (top left) as a boolean mask.
at::Tensor causal_mask(const QueryKeyValueHeads& heads) {
  return at::ones({heads.query.size(2), heads.key.size(2)}, heads.query.options().dtype(at::kBool))
      .tril();
}

// Returns the boolean mask, or nullopt if every key is visible.
std::optional<at::Tensor> boolean_mask(const QueryKeyValueHeads& heads,
                                       const ScoredAttention& how) {
  return how.mask.is_causal ? std::optional(causal_mask(heads)) : how.mask.allowed;
}

// Returns the additive mask [..., heads or 1, seq_q, seq_kv], -Inf for hidden keys.
at::Tensor additive_mask(const QueryKeyValueHeads& heads, const ScoredAttention& how) {
  const at::ScalarType dtype = mask_dtype(heads.query);
  const std::optional<at::Tensor> seen = boolean_mask(heads, how);
  at::Tensor bias = how.bias ? how.bias->to(dtype)
                             : at::zeros({heads.query.size(2), heads.key.size(2)},
                                         heads.query.options().dtype(dtype));
  return seen ? at::where(*seen, bias, at::full({}, kUnseen, bias.options())) : bias;
}

// Appends a column of the sink's scores. Expands heads only if they differ.
at::Tensor with_sink_column(const at::Tensor& mask, const QueryKeyValueHeads& heads,
                            const ScoredAttention& how) {
  const std::int64_t batch = mask.dim() == 4 ? mask.size(0) : 1;
  const std::int64_t own_heads = mask.dim() < 3 ? 1 : mask.size(-3);
  const at::Tensor whole = mask.expand({batch, how.offset ? heads.query.size(1) : own_heads,
                                        heads.query.size(2), heads.key.size(2)});
  const at::Tensor column =
      how.offset ? how.offset->to(mask.scalar_type()) : at::zeros({1, 1, 1, 1}, mask.options());
  return at::cat({whole, column.expand({batch, whole.size(1), whole.size(2), 1})}, -1);
}

at::Tensor with_zeros(const at::Tensor& tensor) {
  return at::cat({tensor, at::zeros_like(tensor.narrow(2, 0, 1))}, 2);
}

// Fully masked queries were allowed everything (AttentionMask::blind).
at::Tensor without_blind(const at::Tensor& attended, const AttentionMask& mask) {
  return mask.blind ? attended.masked_fill(*mask.blind, 0.0) : attended;
}

// The dtype in which the attention is computed. FP32 if the CPU has no BF16 instructions. The dtype
// of a wider additive mask if the device's kernels reject one or read its bits as the narrower
// dtype: a rounded mask would lose digits of distances.
at::ScalarType compute_dtype(const at::Tensor& query, const std::optional<at::Tensor>& mask) {
  const at::ScalarType dtype = query.scalar_type();
  if (ops::multiplies_in_fp32(query)) return at::kFloat;
  const bool widens = !ops::takes_wider_mask(query) && mask && mask->scalar_type() != at::kBool;
  return widens ? mask->scalar_type() : dtype;
}

at::Tensor scaled_attention(const QueryKeyValueHeads& heads, const std::optional<at::Tensor>& mask,
                            bool is_causal, const ScoredAttention& how) {
  const at::ScalarType dtype = compute_dtype(heads.query, mask);
  const auto in_dtype = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == dtype ? tensor : tensor.to(dtype);
  };
  const ScaledAttention taken{.query = in_dtype(heads.query),
                              .key = in_dtype(heads.key),
                              .value = in_dtype(heads.value),
                              .mask = mask,
                              .dropout = how.dropout,
                              .is_causal = is_causal,
                              .scale = how.scale,
                              .grouped = how.grouped};
  const AllowedAttentionKernels kernels(taken.query);
  check_kernel_is_left(taken, kernels);
  if (how.choice) {
    *how.choice =
        choose_kernel(taken, mask_parts({.has_mask = how.mask.allowed || how.mask.is_causal,
                                         .bias = how.bias,
                                         .has_sink = how.has_sink,
                                         .offset = how.offset}));
  }
  return at::scaled_dot_product_attention(taken.query, taken.key, taken.value, mask, how.dropout,
                                          is_causal, how.scale, how.grouped)
      .to(heads.query.scalar_type());
}

}  // namespace

at::ScalarType mask_dtype(const at::Tensor& query) {
  return query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor attend_heads(const QueryKeyValueHeads& heads, const ScoredAttention& how) {
  std::optional<at::Tensor> mask = how.mask.allowed;
  bool causal = how.mask.is_causal;
  if (how.bias || how.has_sink) {
    mask = additive_mask(heads, how);
    causal = false;
  }
  if (how.has_sink && heads.key.size(2) > 0) {
    mask = with_sink_column(*mask, heads, how);
    return without_blind(
        scaled_attention({heads.query, with_zeros(heads.key), with_zeros(heads.value)}, mask, false,
                         how),
        how.mask);
  }
  return without_blind(scaled_attention(heads, mask, causal, how), how.mask);
}

}  // namespace telens
