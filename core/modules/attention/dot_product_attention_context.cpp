// DotProductAttention under context parallelism: what goes with it, and how it is divided.
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "core/distributed/compare_ranks.h"
#include "core/modules/attention/context_attention.h"
#include "core/modules/attention/dot_product_attention.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/wants_gradient.h"

namespace telens {
namespace {

// cu_seqlens, which may be int32 or int64, on any device.
bool are_alike(const std::optional<at::Tensor>& query, const std::optional<at::Tensor>& key) {
  if (!key) return true;
  return query &&
         (key->is_same(*query) || at::equal(*key, query->to(key->device(), key->scalar_type())));
}

std::string claim_of(const char* name, const at::Tensor& heads) {
  return fmt::format("{} {} {}{}", name, c10::str(heads.sizes()),
                     c10::toString(heads.scalar_type()),
                     wants_gradient(heads) ? " with a gradient" : "");
}

const char* comm_type_of(const ContextParallel& context) {
  if (context.heads) return context.sequence ? "a2a+p2p" : "a2a";
  return context.gathers ? "all_gather" : "p2p";
}

}  // namespace

// In the first call, and in each of another kind: a message of its own in every call would cost
// more than the exchange of short sequences. A rank that alone begins another kind later waits in
// vain, and says so after the time that the groups' collectives have.
void DotProductAttention::compare_in_context(const QueryKeyValueHeads& heads,
                                             const DotProductAttentionInputs& inputs,
                                             const ContextAttention& how) {
  static const std::string subject = "DotProductAttention";
  const std::string text = fmt::format(
      "attends by {} in the format {} with attn_mask_type {}, window ({}, {}), dropout {} and "
      "[batch, heads, seq, size] {}, {}, {}",
      comm_type_of(how.parallel), inputs.qkv_format.value_or(options_.qkv_format),
      inputs.attn_mask_type.value_or(options_.attn_mask_type), how.span.left, how.span.right,
      how.dropout, claim_of("query", heads.query), claim_of("key", heads.key),
      claim_of("value", heads.value));
  const bool first = std::exchange(first_in_context_, false);
  for (const ProcessGroupPtr& group : {how.parallel.heads, how.parallel.sequence}) {
    if (!group) continue;
    compare_once_over_ranks({.subject = subject,
                             .group_name = "cp_group",
                             .text = text,
                             .mend = "give all of its ranks the same arguments and equal parts of "
                                     "the sequences, under the same autocast"},
                            group, first);
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
  if (inputs.scores.core_attention_bias_type != "no_bias") {
    refuse("a bias of the scores", "use core_attention_bias_type no_bias");
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
          "DotProductAttention: {} positions on a context-parallel rank; expected an even number, "
          "since each rank has two chunks of one length (2 * {} ranks divide the whole sequence)",
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
    TORCH_WARN_ONCE("scores of attention under cp_comm_type p2p and all_gather are shown to no ",
                    "feature: no rank has them");
  }
  const double dropout = is_training() ? options_.attention_dropout : 0.0;
  if (context_.is_ring() && dropout != 0 && inputs.scores.checkpoint_core_attention) {
    TORCH_WARN_ONCE("checkpoint_core_attention changes nothing under cp_comm_type p2p: the scores ",
                    "are made anew in the backward anyway, and dropout's choices are kept");
  }
  const ContextAttention how{.parallel = context_,
                             .query = places.query,
                             .key = places.key,
                             .span = {.causal = causal, .left = span.left, .right = span.right},
                             .dropout = dropout,
                             .scale = scale(heads.query)};
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
                                   return attend(whole, inputs, call).first;
                                 },
                             .masked =
                                 [&](const QueryKeyValueHeads& own, const ScoredAttention& scores) {
                                   return attend_scored(own, scores,
                                                        inputs.scores.checkpoint_core_attention);
                                 }};
  const QueryKeyValueHeads own{to_activation_dtype(heads.query), to_activation_dtype(heads.key),
                               to_activation_dtype(heads.value)};
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  compare_in_context(own, inputs, how);
  return attend_in_context(own, how, local);
}

}  // namespace telens
