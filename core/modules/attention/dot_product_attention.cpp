#include "core/modules/attention/dot_product_attention.h"

#include <ATen/ops/equal.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/distributed/warn_once.h"
#include "core/modules/attention/attention_arguments.h"
#include "core/modules/attention/attention_layer.h"
#include "core/modules/attention/attention_scores.h"
#include "core/modules/attention/blocked_attention.h"
#include "core/modules/attention/fp8_attention.h"
#include "core/modules/attention/packed_sequences.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/modules/shared/parameter_options.h"
#include "core/ops/tensor_utils.h"

namespace telens {
namespace {

using ops::or_undefined;

constexpr const char* kVanilla = "vanilla";
constexpr const char* kLearnable = "learnable";

// Selects some heads of [1, heads, 1, 1]; nullopt without an offset.
std::optional<at::Tensor> get_offset(const at::Tensor& offset, std::int64_t first,
                                     std::int64_t heads) {
  if (!offset.defined()) return std::nullopt;
  return offset.size(1) == heads ? offset : offset.narrow(1, first, heads);
}

ScoreFunction get_function(const ScoreCallback& callback, const char* name,
                           const ScoreShape& shape) {
  if (!callback) return {};
  return [=](const at::Tensor& scores, const ScoreBlock& block) {
    const at::Tensor made = callback(scores, {block.sample, block.head(), block.query, block.key,
                                              shape.batch, shape.heads, shape.queries, shape.keys});
    if (!made.defined() || made.sizes() != scores.sizes()) {
      raise<ShapeError>("DotProductAttention: {} returned {} for scores {}; expected their shape",
                        name, made.defined() ? c10::str(made.sizes()) : "nothing",
                        c10::str(scores.sizes()));
    }
    return made.to(scores.scalar_type());
  };
}

const std::optional<at::Tensor>& first_given(const std::optional<at::Tensor>& first,
                                             const std::optional<at::Tensor>& second) {
  return first ? first : second;
}

void check_key_and_value(const at::Tensor& key, const at::Tensor& value, std::int64_t dim) {
  if (key.size(dim) != value.size(dim)) {
    raise<ShapeError>(
        "DotProductAttention: key_layer is {} and value_layer {}; expected as many positions",
        key.sizes(), value.sizes());
  }
}

// Inspects queries, keys and values as given, in the attention's dtype, and their gradients.
// `query` and `key` convert gradients from [batch, heads, seq, size] to the given shape.
template <typename OfHeads, typename OfQuery, typename OfKey>
void show_inputs(const AttentionCall& call, const DotProductAttentionInputs& inputs,
                 const OfHeads& heads, const OfQuery& query, const OfKey& key) {
  const auto show = [&](TensorName name, const at::Tensor& tensor) {
    if (call.inspects(name)) call.show(name, to_activation_dtype(tensor.detach()));
  };
  show(TensorName::query, inputs.query_layer);
  show(TensorName::key, inputs.key_layer);
  show(TensorName::value, inputs.value_layer);
  call.show_gradient(TensorName::query_gradient, heads.query, query);
  call.show_gradient(TensorName::key_gradient, heads.key, key);
  call.show_gradient(TensorName::value_gradient, heads.value, key);
}

void show_output(const AttentionCall& call, const at::Tensor& output) {
  if (!call) return;
  call.show(TensorName::attention_output, output);
  call.show_gradient(TensorName::attention_output_gradient, output,
                     [](const at::Tensor& gradient) { return gradient; });
}

// Runs in FP8; NVTE_FP8_DPA_BWD may run the backward in high precision.
at::Tensor attend_cast(const QueryKeyValueHeads& heads, const AttentionRules& rules,
                       const Fp8Attention& fp8) {
  if (has_fp8_backward()) return attend_in_fp8(heads, rules, fp8);
  if (rules.dropout != 0) {
    raise<UsageError>(
        "{}: NVTE_FP8_DPA_BWD=0 does not go with attention_dropout: the backward in high precision "
        "would drop other weights; make the module with 0, or unset the variable",
        fp8.name);
  }
  AttentionRules backward = rules;
  backward.choice.reset();
  return attend_as([&] { return attend_in_fp8(heads, rules, fp8); }, heads, backward);
}

}  // namespace

DotProductAttention::DotProductAttention(DotProductAttentionOptions options)
    : options_(std::move(options)) {
  check_options();
  if (options_.scores.softmax_type == kLearnable) {
    const ParameterOptions parameters{.params_dtype = at::kFloat, .device = options_.device};
    register_slot("softmax_offset", softmax_offset_,
                  parameters.make_constant({1, options_.num_attention_heads, 1, 1}, 0));
  }
}

void DotProductAttention::check_options() const {
  check_qkv_format(options_.qkv_format);
  const AttentionMaskType type = mask_type_from_name(options_.attn_mask_type);
  attention_span(type, options_.scores.window_size, {});
  const std::int64_t heads = options_.num_attention_heads;
  if (heads < 1 || groups() < 1 || heads % groups() != 0) {
    raise<UsageError>(
        "DotProductAttention: {} heads in {} groups; the groups must divide the heads", heads,
        groups());
  }
  check_probability("DotProductAttention", "attention_dropout", options_.attention_dropout);
  const std::vector<std::int64_t>& channels = options_.kv_channels;
  if (channels.empty() || channels.size() > 2 ||
      std::any_of(channels.begin(), channels.end(), [](std::int64_t size) { return size < 1; })) {
    raise<UsageError>(
        "DotProductAttention: kv_channels is ({}); expected one head size, or a size for "
        "queries and keys and a size for values",
        fmt::join(channels, ", "));
  }
  const std::string& softmax = options_.scores.softmax_type;
  if (softmax != kVanilla && softmax != "off-by-one" && softmax != kLearnable) {
    raise<UsageError>("softmax_type '{}' is unknown; expected vanilla, off-by-one or learnable",
                      softmax);
  }
}

std::int64_t DotProductAttention::groups() const {
  return options_.num_gqa_groups.value_or(options_.num_attention_heads);
}

void DotProductAttention::check_channels(const DotProductAttentionInputs& inputs) const {
  const std::vector<std::int64_t>& channels = options_.kv_channels;
  if (inputs.query_layer.size(-1) != channels.front() ||
      inputs.key_layer.size(-1) != channels.front() ||
      inputs.value_layer.size(-1) != channels.back()) {
    raise<ShapeError>(
        "DotProductAttention: query_layer is {}, key_layer {} and value_layer {}; kv_channels ({}) "
        "are their last sizes",
        inputs.query_layer.sizes(), inputs.key_layer.sizes(), inputs.value_layer.sizes(),
        fmt::join(channels, ", "));
  }
}

void DotProductAttention::check(const DotProductAttentionInputs& inputs,
                                std::int64_t batch_dim) const {
  const auto check_one = [&](const char* name, const at::Tensor& tensor, std::int64_t heads) {
    if (tensor.dim() != 4 || tensor.size(2) != heads ||
        tensor.size(batch_dim) != inputs.query_layer.size(batch_dim)) {
      raise<ShapeError>(
          "DotProductAttention: {} is {}; expected 4 dimensions, {} heads, and one batch "
          "size with the query's {}",
          name, tensor.sizes(), heads, inputs.query_layer.sizes());
    }
  };
  check_one("query_layer", inputs.query_layer, options_.num_attention_heads);
  check_one("key_layer", inputs.key_layer, groups());
  check_one("value_layer", inputs.value_layer, groups());
  check_key_and_value(inputs.key_layer, inputs.value_layer, 1 - batch_dim);
  check_channels(inputs);
}

AttentionMaskType DotProductAttention::mask_type(const DotProductAttentionInputs& inputs) const {
  return mask_type_from_name(inputs.attn_mask_type.value_or(options_.attn_mask_type));
}

AttentionSpan DotProductAttention::span(const AttentionMaskType& type,
                                        const DotProductAttentionInputs& inputs) const {
  const ScoreArguments& scores = inputs.scores;
  return attention_span(type, scores.window_size ? scores.window_size : options_.scores.window_size,
                        scores.bottom_right_diagonal ? scores.bottom_right_diagonal
                                                     : options_.scores.bottom_right_diagonal);
}

double DotProductAttention::scale(const at::Tensor& query) const {
  return options_.softmax_scale.value_or(1.0 / std::sqrt(static_cast<double>(query.size(-1))));
}

// Checks score_mod against the arguments that Transformer Engine allows with it.
void DotProductAttention::check_score_mod(const DotProductAttentionInputs& inputs,
                                          const std::string& format) const {
  if (!inputs.score_mod && !inputs.score_mod_bprop) return;
  const auto refuse = [](bool refused, const char* what, const char* instead) {
    if (refused) {
      raise<UsageError>("DotProductAttention: {} does not go with score_mod; {}", what, instead);
    }
  };
  if (!inputs.score_mod) {
    raise<UsageError>(
        "DotProductAttention: score_mod_bprop is the gradient of score_mod, which is "
        "not given");
  }
  const AttentionMaskType type = mask_type(inputs);
  refuse(type.padding || type.arbitrary || type.causality != Causality::none, "an attn_mask_type",
         "give no_mask, and hide scores in score_mod by -inf");
  refuse(span(type, inputs).has_window(), "a window_size", "hide scores in score_mod by -inf");
  refuse(inputs.scores.core_attention_bias_type != "no_bias", "a core_attention_bias_type",
         "add the bias in score_mod");
  refuse(options_.scores.softmax_type != kVanilla, "a softmax_type",
         "make the module with vanilla");
  refuse(options_.attention_dropout != 0, "attention_dropout", "make the module with 0");
  refuse(options_.return_max_logit, "return_max_logit", "make the module without it");
  refuse(inputs.scores.checkpoint_core_attention, "checkpoint_core_attention",
         "omit it, since the backward always recomputes the scores");
  refuse(context_.is_divided(), "context parallelism (cp_group)", "leave the sequence whole");
  refuse(format == "thd", "qkv_format thd", "use sbhd or bshd");
}

AttentionRules DotProductAttention::rules(const Heads& heads,
                                          const DotProductAttentionInputs& inputs) const {
  const AttentionMaskType type = mask_type(inputs);
  const AttentionSizes sizes{.batch = heads.query.size(0),
                             .seq_q = heads.query.size(2),
                             .seq_kv = heads.key.size(2),
                             .heads = heads.query.size(1)};
  const at::Device device = heads.query.device();
  const double scale = this->scale(heads.query);
  const ScoreShape shape = score_shape(heads.query, heads.key);
  const bool has_distances = is_alibi(inputs.scores.core_attention_bias_type);
  return {.mask = MaskRule(type, span(type, inputs), heads.masks, sizes, device, has_distances),
          .bias = BiasRule(inputs.scores, sizes, scale, device),
          .change = {.function = get_function(inputs.score_mod, "score_mod", shape),
                     .gradient = get_function(inputs.score_mod_bprop, "score_mod_bprop", shape)},
          .has_sink = options_.scores.softmax_type != kVanilla,
          .offset = get_offset(softmax_offset_, heads.first_head, heads.query.size(1)),
          .dropout = is_training() ? options_.attention_dropout : 0.0,
          .scale = scale,
          .grouped = groups() != options_.num_attention_heads};
}

std::pair<at::Tensor, at::Tensor> DotProductAttention::attend(
    const Heads& heads, const DotProductAttentionInputs& inputs, const AttentionCall& call) {
  AttentionRules rules = this->rules(heads, inputs);
  rules.choice = call.asked_choice();
  const QueryKeyValueHeads qkv{to_activation_dtype(heads.query), to_activation_dtype(heads.key),
                               to_activation_dtype(heads.value)};
  // torch.autocast would round the mask; it is off in the recomputation of a checkpoint.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const std::optional<Fp8Attention>& fp8 = call.fp8();
  if (fp8 && rules.change) {
    raise<UsageError>(
        "{}: FP8 attention (fp8_dpa) does not go with score_mod; give the recipe fp8_dpa=False",
        fp8->name);
  }
  at::Tensor attended = fp8 ? attend_cast(qkv, rules, *fp8)
                            : attend_ruled(qkv, rules, inputs.scores.checkpoint_core_attention);
  call.show_choice(qkv.query, rules.choice);
  const bool shown = call.inspects(TensorName::scores);
  if (!shown && !options_.return_max_logit) return {std::move(attended), at::Tensor()};
  const QueryKeyValueHeads scored = fp8 ? cast_heads(qkv, *fp8) : qkv;
  if (shown && rules.change) {
    warn_once(
        "features do not see attention scores under score_mod, because its results are not read "
        "a second time");
  } else if (shown) {
    call.show_scores(scores_for_statistics(scored, rules));
  }
  return {std::move(attended),
          options_.return_max_logit ? largest_scores(scored, rules) : at::Tensor()};
}

AttentionCall DotProductAttention::begin_forward(const DotProductAttentionInputs& inputs) {
  const auto asks_gradient = [&] {
    return wants_gradient(inputs.query_layer) || wants_gradient(inputs.key_layer) ||
           wants_gradient(inputs.value_layer) || wants_gradient(softmax_offset_) ||
           wants_gradient(or_undefined(inputs.scores.core_attention_bias));
  };
  return layer_.begin_forward({.query = inputs.query_layer,
                               .training = is_training(),
                               .fp8_output = inputs.fp8_output,
                               .asks_gradient = asks_gradient});
}

Outputs DotProductAttention::forward(const DotProductAttentionInputs& inputs) {
  if (!context_.is_divided()) return attend_checked(inputs);
  try {
    return attend_checked(inputs);
  } catch (const Error& refusal) {
    // The other ranks have compared by then, so this rank's next call does not compare.
    if (std::exchange(first_in_context_, false)) report_error_in_context(refusal.what());
    throw;
  }
}

Outputs DotProductAttention::attend_checked(const DotProductAttentionInputs& inputs) {
  const std::string& format = inputs.qkv_format ? *inputs.qkv_format : options_.qkv_format;
  if (context_.lost > 1) {
    raise<UsageError>(
        "DotProductAttention: it was divided among {} ranks, and a pickle keeps no cp_group; call "
        "set_context_parallel_group",
        context_.lost);
  }
  check_qkv_format(format);
  check_score_mod(inputs, format);
  if (format == "thd") return attend_packed(inputs);
  const std::int64_t batch_dim = get_batch_dim(format);
  const std::int64_t seq_dim = 1 - batch_dim;
  check(inputs, batch_dim);
  // LibTorch has [batch, head, seq, dim].
  const auto arranged = [&](const at::Tensor& tensor) {
    return tensor.permute({batch_dim, 2, seq_dim, 3});
  };
  Heads heads{.query = arranged(inputs.query_layer),
              .key = arranged(inputs.key_layer),
              .value = arranged(inputs.value_layer),
              .masks = inputs.attention_mask};
  const ScoreArguments& scores = inputs.scores;
  Places places{};
  if (context_.is_divided()) {
    check_context(inputs);
    places = this->places(heads, inputs);
  } else if (heads.masks.empty() && scores.cu_seqlens_q && mask_type(inputs).padding) {
    heads.masks = {
        padding_mask("cu_seqlens_q", *scores.cu_seqlens_q, heads.query.size(2)),
        padding_mask("cu_seqlens_kv", *first_given(scores.cu_seqlens_kv, scores.cu_seqlens_q),
                     heads.key.size(2))};
  }
  // [batch, head, seq, dim] -> [seq, batch, head, dim] or [batch, seq, head, dim]
  const auto as_given = [batch_dim](const at::Tensor& by_head) {
    return batch_dim == 0 ? by_head.permute({0, 2, 1, 3}) : by_head.permute({2, 0, 1, 3});
  };
  const AttentionCall call = begin_forward(inputs);
  if (call) show_inputs(call, inputs, heads, as_given, as_given);
  const auto [attended, largest] =
      context_.is_divided() ? std::pair(attend_divided(heads, places, inputs, call), at::Tensor())
                            : attend(heads, inputs, call);
  Outputs outputs{with_codes(as_given(attended).flatten(2), call.fp8())};
  show_output(call, outputs[0]);
  if (largest.defined()) outputs.push_back(largest);
  return outputs;
}

// ---- packed sequences (thd)

namespace {

// [batch, heads, seq, size] -> [tokens, heads, size]
class TokensOf {
 public:
  TokensOf(PackedSequences sequences, std::int64_t tokens)
      : sequences_(std::move(sequences)), tokens_(tokens) {}

  at::Tensor operator()(const at::Tensor& heads) const {
    return pack_sequences(heads.transpose(1, 2).flatten(2), sequences_, tokens_)
        .unflatten(-1, {heads.size(1), heads.size(3)});
  }

 private:
  PackedSequences sequences_;
  std::int64_t tokens_;
};

void check_packed_heads(const char* name, const at::Tensor& tensor, std::int64_t heads) {
  if (tensor.size(1) != heads) {
    raise<ShapeError>("DotProductAttention: {} is {}; expected [tokens, {} heads, size]", name,
                      tensor.sizes(), heads);
  }
}

}  // namespace

DotProductAttention::Packed DotProductAttention::packed(
    const DotProductAttentionInputs& inputs) const {
  const ScoreArguments& scores = inputs.scores;
  const std::int64_t tokens = inputs.query_layer.size(0);
  const std::int64_t key_tokens = inputs.key_layer.size(0);
  const std::optional<at::Tensor>& sums_kv = first_given(scores.cu_seqlens_kv, scores.cu_seqlens_q);
  const std::optional<at::Tensor>& padded_kv =
      scores.cu_seqlens_kv ? scores.cu_seqlens_kv_padded
                           : first_given(scores.cu_seqlens_kv_padded, scores.cu_seqlens_q_padded);
  if (!context_.is_divided()) {
    return {.queries = packed_sequences("cu_seqlens_q", *scores.cu_seqlens_q,
                                        scores.cu_seqlens_q_padded, scores.max_seqlen_q, tokens),
            .keys = packed_sequences("cu_seqlens_kv", *sums_kv, padded_kv, scores.max_seqlen_kv,
                                     key_tokens),
            .places = {}};
  }
  check_context(inputs);
  const ContextRank at = context_.place();
  const PackedContext queries =
      packed_context("cu_seqlens_q", *scores.cu_seqlens_q, scores.cu_seqlens_q_padded, tokens, at);
  // Reads both on the host, once if keys and queries share them.
  const bool own = !scores.cu_seqlens_kv && !scores.cu_seqlens_kv_padded && key_tokens == tokens;
  const PackedContext keys =
      own ? queries : packed_context("cu_seqlens_kv", *sums_kv, padded_kv, key_tokens, at);
  return {.queries = queries.own,
          .keys = keys.own,
          .places = {.query = queries.positions,
                     .key = keys.positions,
                     .alike = own || at::equal(queries.positions.whole, keys.positions.whole)}};
}

Outputs DotProductAttention::attend_packed(const DotProductAttentionInputs& inputs) {
  const ScoreArguments& scores = inputs.scores;
  if (!mask_type(inputs).padding || !scores.cu_seqlens_q) {
    raise<UsageError>(
        "DotProductAttention: qkv_format thd needs cu_seqlens_q and a padding mask (padding, "
        "padding_causal or padding_causal_bottom_right)");
  }
  if (inputs.query_layer.dim() != 3 || inputs.key_layer.dim() != 3 ||
      inputs.value_layer.dim() != 3) {
    raise<ShapeError>(
        "DotProductAttention: query_layer is {}, key_layer {}, value_layer {}; qkv_format thd "
        "takes [tokens, heads, size]",
        inputs.query_layer.sizes(), inputs.key_layer.sizes(), inputs.value_layer.sizes());
  }
  check_packed_heads("query_layer", inputs.query_layer, options_.num_attention_heads);
  check_packed_heads("key_layer", inputs.key_layer, groups());
  check_packed_heads("value_layer", inputs.value_layer, groups());
  check_key_and_value(inputs.key_layer, inputs.value_layer, 0);
  check_channels(inputs);
  const std::int64_t tokens = inputs.query_layer.size(0);
  const auto [queries, keys, places] = packed(inputs);
  if (keys.batch != queries.batch) {
    raise<ShapeError>("DotProductAttention: cu_seqlens_q has {} sequences and cu_seqlens_kv {}",
                      queries.batch, keys.batch);
  }
  const auto by_head = [](const at::Tensor& tensor, const PackedSequences& sequences) {
    return unpack_sequences(tensor, sequences).transpose(1, 2);
  };
  const Heads heads{.query = by_head(inputs.query_layer, queries),
                    .key = by_head(inputs.key_layer, keys),
                    .value = by_head(inputs.value_layer, keys),
                    .masks = {queries.padding, keys.padding}};
  const AttentionCall call = begin_forward(inputs);
  if (call) {
    show_inputs(call, inputs, heads, TokensOf(queries, tokens),
                TokensOf(keys, inputs.key_layer.size(0)));
  }
  const auto [attended, largest] =
      context_.is_divided() ? std::pair(attend_divided(heads, places, inputs, call), at::Tensor())
                            : attend(heads, inputs, call);
  Outputs outputs{
      with_codes(pack_sequences(attended.transpose(1, 2).flatten(2), queries, tokens), call.fp8())};
  show_output(call, outputs[0]);
  if (largest.defined()) outputs.push_back(largest);
  return outputs;
}

}  // namespace telens
