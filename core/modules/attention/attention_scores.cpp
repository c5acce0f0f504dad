#include "core/modules/attention/attention_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/modules/attention/attention_choice.h"
#include "core/modules/attention/attention_kernels.h"
#include "core/ops/device_traits.h"

namespace telens {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// A boolean mask of what is_causal means: top left.
at::Tensor causal_mask(const QueryKeyValueHeads& heads) {
  return at::ones({heads.query.size(2), heads.key.size(2)}, heads.query.options().dtype(at::kBool))
      .tril();
}

// Boolean, or nothing where every key is seen.
std::optional<at::Tensor> boolean_mask(const QueryKeyValueHeads& heads,
                                       const ScoredAttention& how) {
  return how.mask.is_causal ? std::optional(causal_mask(heads)) : how.mask.allowed;
}

// FP64 for FP64, else FP32: BF16 has too few digits for a distance times a slope.
at::ScalarType bias_dtype(const at::Tensor& query) {
  return query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// [..., heads or 1, seq_q, seq_kv], -Inf where nothing is seen.
at::Tensor additive_mask(const QueryKeyValueHeads& heads, const ScoredAttention& how) {
  const at::ScalarType dtype = bias_dtype(heads.query);
  const std::optional<at::Tensor> seen = boolean_mask(heads, how);
  at::Tensor bias = how.bias ? how.bias->to(dtype)
                             : at::zeros({heads.query.size(2), heads.key.size(2)},
                                         heads.query.options().dtype(dtype));
  return seen ? at::where(*seen, bias, at::full({}, kNothing, bias.options())) : bias;
}

// A column of the sink's scores behind the others. Heads are expanded only where they differ.
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

// A query that sees nothing was allowed everything (AttentionMask::blind).
at::Tensor without_blind(const at::Tensor& attended, const AttentionMask& mask) {
  return mask.blind ? attended.masked_fill(*mask.blind, 0.0) : attended;
}

// Throws UsageError where no kernel takes these. Called only where some are switched off:
// LibTorch's own error names no variable.
void check_kernel_is_left(const ScaledAttention& attention) {
  if (has_kernel(attention)) return;
  raise<UsageError>(
      "no attention kernel is left that takes query {} and key {}{}{}: others are switched off by "
      "NVTE_FLASH_ATTN, NVTE_FUSED_ATTN, NVTE_UNFUSED_ATTN, NVTE_ALLOW_NONDETERMINISTIC_ALGO or "
      "torch.backends.cuda; {} allows the one that takes everything",
      c10::str(attention.query.sizes()), c10::str(attention.key.sizes()),
      attention.mask ? " with a mask" : "", attention.dropout != 0 ? " with dropout" : "",
      setting_for_math());
}

MaskParts parts_of(const ScoredAttention& how) {
  MaskParts parts;
  if (how.mask.allowed || how.mask.is_causal) parts.all.push_back("the mask");
  const auto add = [&](std::string_view name, const std::optional<at::Tensor>& tensor) {
    parts.all.push_back(name);
    if (tensor && tensor->requires_grad()) parts.with_gradient.push_back(name);
  };
  if (how.bias) add("the bias", how.bias);
  if (how.has_sink) add(how.offset ? "softmax_offset" : "the softmax's sink", how.offset);
  return parts;
}

// Kernels off the CPU take an additive mask of the query's dtype alone: they refuse a wider one, or
// read its bits as the narrower. The scores are then computed in the mask's dtype, for a rounded
// mask would lose a distance's digits.
at::Tensor scaled_attention(const QueryKeyValueHeads& heads, const std::optional<at::Tensor>& mask,
                            bool is_causal, const ScoredAttention& how) {
  const at::ScalarType dtype = heads.query.scalar_type();
  const bool widens = !ops::takes_wider_mask(heads.query) && mask &&
                      mask->scalar_type() != at::kBool && mask->scalar_type() != dtype;
  const auto given = [&](const at::Tensor& tensor) {
    return widens ? tensor.to(mask->scalar_type()) : tensor;
  };
  const ScaledAttention taken{.query = given(heads.query),
                              .key = given(heads.key),
                              .value = given(heads.value),
                              .mask = mask,
                              .dropout = how.dropout,
                              .is_causal = is_causal,
                              .scale = how.scale,
                              .grouped = how.grouped};
  const AllowedAttentionKernels kernels(taken.query);
  if (kernels.restricted()) check_kernel_is_left(taken);
  if (how.choice) *how.choice = choose_kernel(taken, parts_of(how));
  return at::scaled_dot_product_attention(taken.query, taken.key, taken.value, mask, how.dropout,
                                          is_causal, how.scale, how.grouped)
      .to(dtype);
}

}  // namespace

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

at::Tensor largest_scores(const QueryKeyValueHeads& heads, const ScoredAttention& how) {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kQueries = 128;
  const at::ScalarType dtype = bias_dtype(heads.query);
  const std::int64_t count = heads.query.size(1);
  const at::Tensor keys =
      heads.key.to(dtype)
          .repeat_interleave(count / std::max<std::int64_t>(1, heads.key.size(1)), 1)
          .transpose(-1, -2);
  at::Tensor largest = at::full({count}, kNothing, heads.query.options().dtype(at::kFloat));
  if (heads.key.size(2) == 0 || heads.query.numel() == 0) return largest;
  std::optional<at::Tensor> mask;
  if (how.bias || how.mask.allowed || how.mask.is_causal) {
    mask = additive_mask(heads, how);
    if (how.mask.blind) mask = mask->masked_fill(*how.mask.blind, kNothing);
  }
  for (std::int64_t first = 0; first < heads.query.size(2); first += kQueries) {
    const std::int64_t queries = std::min(kQueries, heads.query.size(2) - first);
    at::Tensor scores =
        at::matmul(heads.query.narrow(2, first, queries).to(dtype), keys) * how.scale;
    if (mask) {
      scores = scores + (mask->size(-2) == 1 ? *mask : mask->narrow(-2, first, queries));
    }
    largest = at::maximum(largest, scores.amax({0, 2, 3}).to(at::kFloat));
  }
  return largest;
}

}  // namespace telens
