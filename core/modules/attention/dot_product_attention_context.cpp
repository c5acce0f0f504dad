// DotProductAttention under context parallelism: checks, positions and communication.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <span>
#include <string>
#include <utility>

#include "core/base/fnv1a.h"
#include "core/distributed/compare_ranks.h"
#include "core/distributed/warn_once.h"
#include "core/modules/attention/attention_bias.h"
#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/blocked_attention.h"
#include "core/modules/attention/context_attention.h"
#include "core/modules/attention/dot_product_attention.h"
#include "core/modules/attention/fp8_attention.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"

namespace telens {
namespace {

// cu_seqlens: int32 or int64, on any device.
bool are_alike(const std::optional<at::Tensor>& query, const std::optional<at::Tensor>& key) {
  if (!key) return true;
  return query &&
         (key->is_same(*query) || at::equal(*key, query->to(key->device(), key->scalar_type())));
}

const char* words_of_fp8(const ContextAttention& how) {
  if (!how.fp8) return "";
  return has_fp8_backward() ? " in FP8" : " in FP8 with NVTE_FP8_DPA_BWD=0";
}

std::string describe_claim(const char* name, const at::Tensor& heads) {
  return fmt::format("{} {} {}{}", name, c10::str(heads.sizes()),
                     c10::toString(heads.scalar_type()),
                     wants_gradient(heads) ? " with a gradient" : "");
}

// Formats a few numbers completely, and more numbers as the first ones and a digest.
std::string claim_of_sums(const char* name, const std::optional<at::Tensor>& sums) {
  constexpr std::size_t kMost = 17;
  constexpr std::size_t kFirst = 8;
  if (!sums) return {};
  const at::Tensor host = sums->to(at::kCPU, at::kLong).contiguous();
  const std::span numbers(host.const_data_ptr<std::int64_t>(),
                          static_cast<std::size_t>(host.numel()));
  const std::string all = fmt::format("{}", fmt::join(numbers, ", "));
  if (numbers.size() <= kMost) return fmt::format(", {} [{}]", name, all);
  return fmt::format(", {} [{}, ...] of {} numbers with the digest {:016x}", name,
                     fmt::join(numbers.first(kFirst), ", "), numbers.size(), fnv1a(all));
}

// [batch or 1, heads or 1, this rank's queries or 1, keys of every rank]
at::Tensor with_checked_sizes(at::Tensor bias, const QueryKeyValueHeads& heads,
                              std::int64_t ranks) {
  const std::array expected{heads.query.size(0), heads.query.size(1), heads.query.size(2),
                            heads.key.size(2) * ranks};
  const at::IntArrayRef given = bias.sizes();
  bool fits = bias.dim() >= 1 && bias.dim() <= 4 && given.back() == expected.back();
  for (std::int64_t dim = -1; fits && dim >= -bias.dim(); --dim) {
    fits = bias.size(dim) == 1 || bias.size(dim) == expected[static_cast<std::size_t>(4 + dim)];
  }
  if (!fits) {
    raise<ShapeError>(
        "DotProductAttention: core_attention_bias is {}; under context parallelism (cp_group) "
        "expected one that broadcasts to [batch, heads, queries of this rank, keys of every "
        "rank] = {} and covers every key",
        c10::str(given), expected);
  }
  while (bias.dim() < 4) bias = bias.unsqueeze(0);
  return bias;
}

std::optional<at::Tensor> checked_bias(const ScoreArguments& scores,
                                       const QueryKeyValueHeads& heads,
                                       const ContextAttention& how) {
  std::optional<at::Tensor> bias = given_bias(scores, how.scale);
  if (!bias) return bias;
  if (how.fp8) {
    raise<UsageError>(
        "{}: core_attention_bias does not go with FP8 attention (fp8_dpa) under context "
        "parallelism (cp_group), in Transformer Engine neither; give the recipe fp8_dpa=False",
        how.fp8->name);
  }
  return with_checked_sizes(*bias, heads, how.parallel.place().size);
}

void check_fp8(const std::optional<Fp8Attention>& fp8) {
  if (!fp8 || has_fp8_backward()) return;
  raise<UsageError>(
      "{}: NVTE_FP8_DPA_BWD=0 does not go with context parallelism (cp_group): a ring keeps codes, "
      "and no values for a backward in high precision; unset it, or give the recipe fp8_dpa=False",
      fp8->name);
}

const char* get_comm_type(const ContextParallel& context) {
  if (context.heads) return context.sequence ? "a2a+p2p" : "a2a";
  return context.gathers ? "all_gather" : "p2p";
}

}  // namespace

// Compares in the first call and in each call of a different kind: comparing in every call would
// cost more than the exchange of short sequences. If only one rank starts a different kind, it
// times out with an error.
void DotProductAttention::compare_in_context(const QueryKeyValueHeads& heads,
                                             const DotProductAttentionInputs& inputs,
                                             const ContextAttention& how) {
  static const std::string subject = "DotProductAttention";
  const ScoreArguments& scores = inputs.scores;
  const std::string text = fmt::format(
      "attends by {}{} in the format {} with attn_mask_type {}, window ({}, {}), dropout {} and "
      "[batch, heads, seq, size] {}, {}, {}{}",
      get_comm_type(how.parallel), words_of_fp8(how),
      inputs.qkv_format.value_or(options_.qkv_format),
      inputs.attn_mask_type.value_or(options_.attn_mask_type), how.span.left, how.span.right,
      how.dropout, describe_claim("query", heads.query), describe_claim("key", heads.key),
      describe_claim("value", heads.value),
      scores.core_attention_bias
          ? ", " + describe_claim("core_attention_bias", *scores.core_attention_bias)
          : "");
  const auto contents = [&] {
    return claim_of_sums("cu_seqlens_q", scores.cu_seqlens_q) +
           claim_of_sums("cu_seqlens_kv", scores.cu_seqlens_kv) +
           claim_of_sums("cu_seqlens_q_padded", scores.cu_seqlens_q_padded) +
           claim_of_sums("cu_seqlens_kv_padded", scores.cu_seqlens_kv_padded);
  };
  const bool first = std::exchange(first_in_context_, false);
  const RankClaim claim{.subject = subject,
                        .group_name = "cp_group",
                        .text = text,
                        .hint =
                            "give all of its ranks the same arguments and equal parts of the "
                            "sequences, under the same autocast",
                        .details = contents};
  try {
    if (how.parallel.heads) compare_once_over_ranks(claim, how.parallel.heads, first);
  } catch (const Error& difference) {
    if (first && how.parallel.sequence)
      report_error_to_ranks(claim, difference.what(), how.parallel.sequence);
    throw;
  }
  if (how.parallel.sequence) compare_once_over_ranks(claim, how.parallel.sequence, first);
}

void DotProductAttention::report_error_in_context(const std::string& reason) const {
  static const std::string subject = "DotProductAttention";
  for (const ProcessGroupPtr& group : {context_.heads, context_.sequence}) {
    if (!group) continue;
    report_error_to_ranks({.subject = subject,
                           .group_name = "cp_group",
                           .text = {},
                           .hint = "give all of its ranks the same arguments"},
                          reason, group);
  }
}

void DotProductAttention::check_context(const DotProductAttentionInputs& inputs) const {
  const auto refuse = [](const char* what, const char* instead) {
    raise<UsageError>("DotProductAttention: {} does not go with context parallelism (cp_group); {}",
                      what, instead);
  };
  const AttentionMaskType type = mask_type(inputs);
  if (type.arbitrary) refuse("attn_mask_type arbitrary", "use a causal, padding or no mask");
  if (type.padding && (!inputs.scores.cu_seqlens_q || !inputs.attention_mask.empty())) {
    refuse("an attention_mask", "give cu_seqlens_q, the sums of the whole sequences' lengths");
  }
  if (is_alibi(inputs.scores.core_attention_bias_type)) {
    refuse(
        "core_attention_bias_type alibi",
        "in Transformer Engine neither: give -slope * distance as core_attention_bias of the type "
        "post_scale_bias, under cp_comm_type p2p");
  }
  if (inputs.scores.core_attention_bias_type != "no_bias") {
    if (!context_.is_ring() || context_.heads) {
      refuse("core_attention_bias under all_gather, a2a or a2a+p2p",
             "in Transformer Engine neither: use cp_comm_type p2p");
    }
    if (inputs.qkv_format.value_or(options_.qkv_format) == "thd") {
      refuse("core_attention_bias of packed sequences (thd)",
             "they have no matrix of scores in common: use sbhd or bshd");
    }
  }
  if (options_.return_max_logit) refuse("return_max_logit", "leave it out");
  const bool only_heads = context_.heads && !context_.sequence;
  if (options_.scores.softmax_type != "vanilla" && !only_heads) {
    refuse("a softmax_type other than vanilla", "use cp_comm_type a2a");
  }
  if (span(type, inputs).has_window() && context_.is_ring()) {
    refuse("a window_size under p2p", "use cp_comm_type all_gather or a2a");
  }
}

DotProductAttention::Places DotProductAttention::places(
    const Heads& heads, const DotProductAttentionInputs& inputs) const {
  const ContextRank at = context_.place();
  const ScoreArguments& scores = inputs.scores;
  const auto positions = [&](const char* argument, const at::Tensor& tensor,
                             const std::optional<at::Tensor>& sums) {
    const std::int64_t length = tensor.size(2);
    if (length % 2 != 0) {
      raise<ShapeError>(
          "DotProductAttention: {} positions on a context-parallel rank; expected an even "
          "number, since each rank has two chunks of equal length (2 * {} ranks divide the "
          "whole sequence)",
          length, at.size);
    }
    if (sums && sums->size(0) != tensor.size(0) + 1) {
      raise<ShapeError>("DotProductAttention: {} has {} numbers; expected {}, of a batch of {}",
                        argument, sums->size(0), tensor.size(0) + 1, tensor.size(0));
    }
    return context_positions(argument, length, at, sums, tensor.device());
  };
  const bool padding = mask_type(inputs).padding;
  const auto& keys = scores.cu_seqlens_kv ? scores.cu_seqlens_kv : scores.cu_seqlens_q;
  const auto if_padding = [&](const std::optional<at::Tensor>& sums) {
    return padding ? sums : std::nullopt;
  };
  return {.query = positions("cu_seqlens_q", heads.query, if_padding(scores.cu_seqlens_q)),
          .key = positions("cu_seqlens_kv", heads.key, if_padding(keys)),
          .alike = heads.query.size(2) == heads.key.size(2) &&
                   (!padding || are_alike(scores.cu_seqlens_q, scores.cu_seqlens_kv))};
}

at::Tensor DotProductAttention::attend_divided(const Heads& heads, const Places& places,
                                               const DotProductAttentionInputs& inputs,
                                               const AttentionCall& call) {
  const AttentionMaskType type = mask_type(inputs);
  const bool causal = type.causality != Causality::none;
  const AttentionSpan span = this->span(type, inputs);
  if ((causal || span.has_window()) && !places.alike) {
    raise<UsageError>(
        "DotProductAttention: under context parallelism (cp_group) a causal mask or a window needs "
        "queries and keys of the same lengths");
  }
  if (call.inspects(TensorName::scores) && context_.sequence) {
    warn_once(
        "scores of attention under cp_comm_type p2p and all_gather are shown to no feature: no "
        "rank has them");
  }
  const double dropout = is_training() ? options_.attention_dropout : 0.0;
  if (context_.is_ring() && dropout != 0 && inputs.scores.checkpoint_core_attention) {
    warn_once(
        "checkpoint_core_attention changes nothing under cp_comm_type p2p: the backward always "
        "recomputes the scores, and dropout's choices are saved");
  }
  ContextAttention how{.parallel = context_,
                       .query = places.query,
                       .key = places.key,
                       .span = {.causal = causal, .left = span.left, .right = span.right},
                       .dropout = dropout,
                       .scale = scale(heads.query)};
  const QueryKeyValueHeads chunks{to_activation_dtype(heads.query), to_activation_dtype(heads.key),
                                  to_activation_dtype(heads.value)};
  const AttentionCall part = call.part();
  how.fp8 = part.fp8();
  // A rank that rejects its arguments earlier would leave the other ranks waiting.
  compare_in_context(chunks, inputs, how);
  check_fp8(how.fp8);
  how.bias = checked_bias(inputs.scores, chunks, how);
  const LocalAttention local{.whole =
                                 [&](const QueryKeyValueHeads& own, std::int64_t first_head) {
                                   Heads whole{.query = own.query,
                                               .key = own.key,
                                               .value = own.value,
                                               .masks = {},
                                               .first_head = first_head};
                                   if (type.padding) {
                                     whole.masks = {places.query.padding(), places.key.padding()};
                                   }
                                   return attend(whole, inputs, part).first;
                                 },
                             .masked =
                                 [&](const QueryKeyValueHeads& own, const ScoredAttention& scores) {
                                   const AttentionRules rules = make_rules(own, scores);
                                   if (part.fp8()) return attend_in_fp8(own, rules, *part.fp8());
                                   return attend_ruled(own, rules,
                                                       inputs.scores.checkpoint_core_attention);
                                 }};
  const std::optional<Fp8Attention>& fp8 = call.fp8();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (!fp8) return attend_in_context(chunks, how, local);
  return end_output(attend_in_context(with_ended_gradients(chunks, *fp8), how, local), *fp8);
}

}  // namespace telens
