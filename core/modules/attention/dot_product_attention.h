// softmax(Q K^T * scale) V (https://arxiv.org/abs/1706.03762), with Transformer Engine's masks,
// windows, biases and softmaxes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/modules/attention/attention_arguments.h"
#include "core/modules/attention/attention_layer.h"
#include "core/modules/attention/attention_mask.h"
#include "core/modules/attention/attention_scores.h"
#include "core/modules/attention/context_parallel.h"
#include "core/modules/module/module.h"

namespace telens {

struct ContextAttention;

struct DotProductAttentionOptions {
  std::int64_t num_attention_heads = 0;
  std::vector<std::int64_t> kv_channels = {};  // one number, or one for keys and one for values
  std::optional<std::int64_t> num_gqa_groups = {};
  double attention_dropout = 0.0;
  std::string qkv_format = "sbhd";
  std::string attn_mask_type = "causal";
  std::optional<double> softmax_scale = {};
  ScoreOptions scores = ScoreOptions();
  bool return_max_logit = false;
  std::optional<at::Device> device = {};  // device of softmax_offset

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = DotProductAttentionOptions;
    visit("num_attention_heads", &Self::num_attention_heads, "heads of the query");
    visit("kv_channels", &Self::kv_channels,
          "head size: one number, or two for queries and keys, and for values");
    visit("num_gqa_groups", &Self::num_gqa_groups,
          "heads of key and value; default: the query's number");
    visit("attention_dropout", &Self::attention_dropout,
          "probability of dropping an attention weight in training");
    visit("qkv_format", &Self::qkv_format,
          "sbhd: [seq, batch, head, dim]; bshd; thd: [tokens, head, dim], packed sequences");
    visit("attn_mask_type", &Self::attn_mask_type,
          "no_mask, padding, causal, padding_causal, causal_bottom_right, "
          "padding_causal_bottom_right or arbitrary");
    visit("softmax_scale", &Self::softmax_scale, "None: 1 / sqrt(kv_channels)");
    ScoreOptions::describe_in<Self>(visit, &Self::scores);
    visit("return_max_logit", &Self::return_max_logit,
          "returns each head's largest score too, after scale, bias and mask");
    visit("device", &Self::device,
          "device of softmax_offset; default: the modules' default "
          "device");
  }
};

struct DotProductAttentionInputs {
  at::Tensor query_layer;  // [seq_q, batch, heads, kv_channels] in the format sbhd
  at::Tensor key_layer;    // [seq_kv, batch, groups, kv_channels]
  at::Tensor value_layer;  // [seq_kv, batch, groups, value channels]
  std::vector<at::Tensor> attention_mask = {};
  std::optional<std::string> qkv_format = {};
  std::optional<std::string> attn_mask_type = {};
  ScoreArguments scores = ScoreArguments();
  ScoreCallback score_mod = {};
  ScoreCallback score_mod_bprop = {};
  bool fp8_output = false;

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = DotProductAttentionInputs;
    visit("query_layer", &Self::query_layer, "[seq_q, batch, heads, kv_channels] for sbhd");
    visit("key_layer", &Self::key_layer, "[seq_kv, batch, groups, kv_channels] for sbhd");
    visit("value_layer", &Self::value_layer, "[seq_kv, batch, groups, channels] for sbhd");
    visit("attention_mask", &Self::attention_mask,
          "boolean, True is masked out. padding: [batch, 1, 1, seq_kv], or one for query and "
          "one for key (or use cu_seqlens); arbitrary: broadcast to [batch, heads, seq_q, "
          "seq_kv]");
    visit("qkv_format", &Self::qkv_format, "default: the module's setting");
    visit("attn_mask_type", &Self::attn_mask_type, "default: the module's setting");
    ScoreArguments::describe_in<Self>(visit, &Self::scores);
    visit("score_mod", &Self::score_mod,
          "computes the softmax's argument from the scaled scores, without mask, bias, dropout "
          "and FP8; in Python score_mod(graph, score, tensors)");
    visit("score_mod_bprop", &Self::score_mod_bprop,
          "computes the scores' gradient from the gradient of score_mod's result; default: "
          "autograd");
    visit("fp8_output", &Self::fp8_output,
          "FP8 attention passes the codes of its output to the next layer, which does not cast "
          "again; no effect in high precision");
  }
};

class TELENS_EXPORT DotProductAttention : public CallableModule<DotProductAttentionInputs> {
 public:
  using Options = DotProductAttentionOptions;

  explicit DotProductAttention(DotProductAttentionOptions options);

  // Returns [seq_q, batch, heads * value channels], [batch, seq_q, ...] for bshd or [tokens, ...]
  // for thd; with return_max_logit also [heads] FP32. Rows of fully masked queries are 0, and so
  // are thd tokens outside of sequences. Runs in FP8 (fp8_attention.h) inside an autocast whose
  // recipe has fp8_dpa, except for FP64. With fp8_output the codes are attached to the result
  // (core/quantization/quantized_payload.h); throws UsageError if the recipe does not quantize it.
  Outputs forward(const DotProductAttentionInputs& inputs) override;

  void set_debug_name(const std::string& name) override { layer_.hooks().set_name(name); }

  // Divides the attention: each rank has two chunks of every sequence (context_parallel.h), and
  // cu_seqlens describe the whole sequences. The forward rejects arguments that are not supported.
  void set_context_parallel(const ContextParallel& parallel) override {
    context_ = parallel;
    first_in_context_ = true;
  }
  const ContextParallel& context() const { return context_; }

  // Amax histories and scales of delayed scaling with fp8_dpa; else empty: Transformer Engine's
  // checkpoints contain the key.
  at::Tensor extra_state() const override { return layer_.quantization().extra_state(); }
  std::vector<LayerQuantization*> quantizations() override {
    return layer_.quantization().groups();
  }

  // The scales of its output and of its input gradients, for the layers around it.
  const AttentionScales& scales() const { return layer_.quantization().scales(); }

  const DotProductAttentionOptions& options() const { return options_; }

 protected:
  void load_extra_state(const at::Tensor& bytes, const std::string& key) override {
    layer_.quantization().set_extra_state(bytes, key);
  }

 private:
  // Queries, keys and values as [batch, heads, seq, size], and their masks.
  struct Heads {
    at::Tensor query;
    at::Tensor key;
    at::Tensor value;
    std::vector<at::Tensor> masks;
    std::int64_t first_head = 0;  // index in softmax_offset
  };
  // Positions of this rank's chunks under context parallelism.
  struct Places {
    ContextPositions query;
    ContextPositions key;
    bool alike;  // queries and keys have the same positions
  };
  // Packed sequences (thd); positions are set only under context parallelism.
  struct Packed {
    PackedSequences queries;
    PackedSequences keys;
    Places places;
  };

  void check_options() const;
  void check_score_mod(const DotProductAttentionInputs& inputs, const std::string& format) const;
  void check(const DotProductAttentionInputs& inputs, std::int64_t batch_dim) const;
  void check_channels(const DotProductAttentionInputs& inputs) const;
  AttentionMaskType mask_type(const DotProductAttentionInputs& inputs) const;
  AttentionSpan span(const AttentionMaskType& type, const DotProductAttentionInputs& inputs) const;
  double scale(const at::Tensor& query) const;
  AttentionRules rules(const Heads& heads, const DotProductAttentionInputs& inputs) const;
  Outputs attend_checked(const DotProductAttentionInputs& inputs);
  Outputs attend_packed(const DotProductAttentionInputs& inputs);
  // ([batch, heads, seq, size], largest scores or undefined)
  std::pair<at::Tensor, at::Tensor> attend(const Heads& heads,
                                           const DotProductAttentionInputs& inputs,
                                           const AttentionCall& call);

  AttentionCall begin_forward(const DotProductAttentionInputs& inputs);

  Packed packed(const DotProductAttentionInputs& inputs) const;

  // Runs under context parallelism.
  void check_context(const DotProductAttentionInputs& inputs) const;
  // Reports an error of this rank before the first comparison, in which the other ranks will block.
  void report_error_in_context(const std::string& reason) const;
  // Throws UsageError if ranks of the groups attend in different ways.
  void compare_in_context(const QueryKeyValueHeads& heads, const DotProductAttentionInputs& inputs,
                          const ContextAttention& how);
  Places places(const Heads& heads, const DotProductAttentionInputs& inputs) const;
  at::Tensor attend_divided(const Heads& heads, const Places& places,
                            const DotProductAttentionInputs& inputs, const AttentionCall& call);

  std::int64_t groups() const;

  DotProductAttentionOptions options_;
  AttentionLayer layer_;
  ContextParallel context_;
  bool first_in_context_ = true;
  at::Tensor softmax_offset_;  // [1, heads, 1, 1], FP32; learnable softmax only
};

}  // namespace telens
