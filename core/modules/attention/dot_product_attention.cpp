#include "core/modules/attention/dot_product_attention.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/modules/attention/attention_bias.h"
#include "core/modules/attention/attention_scores.h"
#include "core/modules/attention/attention_shown.h"
#include "core/modules/attention/fp8_attention.h"
#include "core/modules/attention/packed_sequences.h"
#include "core/modules/attention/qkv_format.h"
#include "core/modules/shared/checkpointed_call.h"
#include "core/modules/shared/parameter_options.h"
#include "core/modules/shared/probability.h"
#include "core/modules/shared/wants_gradient.h"
#include "core/ops/optional_tensor.h"

namespace telens {
namespace {

using ops::if_defined;
using ops::or_undefined;

constexpr const char* kVanilla = "vanilla";
constexpr const char* kLearnable = "learnable";

// The part of some heads, [1, heads, 1, 1]; nothing where there is none.
std::optional<at::Tensor> offset_of(const at::Tensor& offset, std::int64_t first,
                                    std::int64_t heads) {
  if (!offset.defined()) return std::nullopt;
  return offset.size(1) == heads ? offset : offset.narrow(1, first, heads);
}

// The same bits as attend_heads, with nothing kept for the backward but what comes in.
at::Tensor attend_checkpointed(const QueryKeyValueHeads& heads, const ScoredAttention& how) {
  return checkpointed_call(
      [how = ScoredAttention{.mask = how.mask,
                             .has_sink = how.has_sink,
                             .dropout = how.dropout,
                             .scale = how.scale,
                             .grouped = how.grouped,
                             .choice = how.choice}](const std::vector<at::Tensor>& inputs) {
        ScoredAttention again = how;
        again.bias = if_defined(inputs[3]);
        again.offset = if_defined(inputs[4]);
        return attend_heads({inputs[0], inputs[1], inputs[2]}, again);
      },
      {heads.query, heads.key, heads.value, or_undefined(how.bias), or_undefined(how.offset)},
      how.dropout != 0);
}

void check_bias(const at::Tensor& bias, const at::Tensor& query, const AttentionSizes& sizes) {
  const std::array expected{sizes.batch, query.size(1), sizes.seq_q, sizes.seq_kv};
  const std::int64_t missing = std::ssize(expected) - bias.dim();
  bool fits = bias.dim() >= 2 && missing >= 0;
  for (std::int64_t dim = 0; fits && dim < bias.dim(); ++dim) {
    const std::int64_t size = bias.size(dim);
    fits = size == 1 || size == expected[static_cast<std::size_t>(dim + missing)];
  }
  if (!fits) {
    raise<ShapeError>(
        "DotProductAttention: the bias of the scores (core_attention_bias, alibi_slopes) is {}; "
        "expected one that broadcasts to [batch, heads, seq_q, seq_kv] = {}",
        bias.sizes(), expected);
  }
}

// The scores as the operator of their statistics takes them.
ops::AttentionScores scores_of(const QueryKeyValueHeads& heads, const ScoredAttention& how) {
  return {.query = heads.query,
          .key = heads.key,
          .allowed = how.mask.allowed,
          .blind = how.mask.blind,
          .bias = how.bias,
          .offset = how.offset,
          .is_causal = how.mask.is_causal,
          .has_sink = how.has_sink,
          .scale = how.scale};
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
        "DotProductAttention: kv_channels is ({}); expected one size of a head, or that of queries "
        "and keys and that of values",
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

at::Tensor DotProductAttention::attend_scored(const QueryKeyValueHeads& heads,
                                              const ScoredAttention& how, bool checkpoint) {
  return checkpoint ? attend_checkpointed(heads, how) : attend_heads(heads, how);
}

std::pair<at::Tensor, at::Tensor> DotProductAttention::attend(
    const Heads& heads, const DotProductAttentionInputs& inputs, const AttentionCall& call) {
  const ScoreArguments& scores = inputs.scores;
  const AttentionMaskType type = mask_type(inputs);
  const AttentionSpan span = this->span(type, inputs);
  const AttentionSizes sizes{
      .batch = heads.query.size(0), .seq_q = heads.query.size(2), .seq_kv = heads.key.size(2)};
  const at::Device device = heads.query.device();
  const double scale = this->scale(heads.query);
  at::Tensor distances;
  if (is_alibi(scores.core_attention_bias_type)) {
    distances = diagonal_distances(type, span, heads.masks, sizes, device);
  }
  const ScoredAttention how{
      .mask = make_attention_mask(type, span, heads.masks, sizes, device),
      .bias = attention_bias(
          scores, {.heads = options_.num_attention_heads, .scale = scale, .distances = distances}),
      .has_sink = options_.scores.softmax_type != kVanilla,
      .offset = offset_of(softmax_offset_, heads.first_head, heads.query.size(1)),
      .dropout = is_training() ? options_.attention_dropout : 0.0,
      .scale = scale,
      .grouped = groups() != options_.num_attention_heads,
      .choice = call.asked_choice()};
  if (how.bias) check_bias(*how.bias, heads.query, sizes);
  const QueryKeyValueHeads qkv{to_activation_dtype(heads.query), to_activation_dtype(heads.key),
                               to_activation_dtype(heads.value)};
  // torch.autocast would round the mask of scores, and is off where a checkpoint computes anew.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const std::optional<Fp8Attention>& fp8 = call.fp8();
  at::Tensor attended = fp8 ? attend_in_fp8(qkv, how, *fp8)
                            : attend_scored(qkv, how, scores.checkpoint_core_attention);
  call.show_choice(qkv.query, how.choice);
  const bool shown = call.inspects(TensorName::scores);
  if (!shown && !options_.return_max_logit) return {std::move(attended), at::Tensor()};
  const QueryKeyValueHeads scored = fp8 ? cast_heads(qkv, *fp8) : qkv;
  if (shown) call.show_scores(scores_of(scored, how));
  return {std::move(attended),
          options_.return_max_logit ? largest_scores(scored, how) : at::Tensor()};
}

AttentionCall DotProductAttention::begin_forward(const DotProductAttentionInputs& inputs) {
  const bool asks_gradient =
      wants_gradient(inputs.query_layer) || wants_gradient(inputs.key_layer) ||
      wants_gradient(inputs.value_layer) || wants_gradient(softmax_offset_) ||
      wants_gradient(or_undefined(inputs.scores.core_attention_bias));
  return layer_.begin_forward(
      {.query = inputs.query_layer, .training = is_training(), .asks_gradient = asks_gradient});
}

Outputs DotProductAttention::forward(const DotProductAttentionInputs& inputs) {
  const std::string& format = inputs.qkv_format ? *inputs.qkv_format : options_.qkv_format;
  if (context_.lost > 1) {
    raise<UsageError>(
        "DotProductAttention: it was divided among {} ranks, and a pickle keeps no cp_group; call "
        "set_context_parallel_group",
        context_.lost);
  }
  check_qkv_format(format);
  if (format == "thd") return attend_packed(inputs);
  const std::int64_t batch_dim = batch_dim_of(format);
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
  Outputs outputs{as_given(attended).flatten(2)};
  show_output(call, outputs[0]);
  if (largest.defined()) outputs.push_back(largest);
  return outputs;
}

}  // namespace telens
