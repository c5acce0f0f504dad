// Attention with its projections of query, key, value and output.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/modules/attention/dot_product_attention.h"
#include "core/modules/attention/rotary_embedding.h"
#include "core/modules/fused/layer_norm_linear.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/linear/linear.h"
#include "core/modules/module/module.h"
#include "core/modules/norm/norm.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

struct MultiheadAttentionOptions {
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::optional<std::int64_t> kv_channels = {};
  double attention_dropout = 0.1;
  double layernorm_epsilon = 1e-5;
  ParameterOptions::InitMethod output_layer_init_method = {};
  std::optional<std::int64_t> layer_number = {};
  std::string attn_mask_type = "causal";
  std::optional<std::int64_t> num_gqa_groups = {};
  bool return_bias = false;
  bool return_layernorm_output = false;
  bool input_layernorm = false;
  std::string attention_type = "self";
  bool fuse_qkv_params = false;
  bool zero_centered_gamma = false;
  bool qkv_weight_interleaved = true;
  bool bias = true;
  std::string normalization = "LayerNorm";
  std::string qkv_format = "sbhd";
  std::optional<double> softmax_scale = {};
  ScoreOptions scores = ScoreOptions();
  std::string qk_norm_type = {};  // empty if none
  double qk_norm_eps = 1e-6;
  bool qk_norm_before_rope = false;
  bool rotary_pos_interleaved = false;
  ParameterOptions parameters = ParameterOptions();
  bool set_parallel_mode = false;
  std::string name = {};
  OverlapSwitches overlap = OverlapSwitches();

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = MultiheadAttentionOptions;
    visit("hidden_size", &Self::hidden_size, "size of an input sample");
    visit("num_attention_heads", &Self::num_attention_heads, "heads of the query");
    visit("kv_channels", &Self::kv_channels,
          "size of a head; default: hidden_size / num_attention_heads");
    visit("attention_dropout", &Self::attention_dropout,
          "probability of dropping an attention weight in training");
    visit("layernorm_epsilon", &Self::layernorm_epsilon, "added to the variance");
    ParameterOptions::describe_init_method_in<Self>(visit, &Self::parameters);
    visit("output_layer_init_method", &Self::output_layer_init_method,
          "fills the output projection's weight in place; default: as init_method's default");
    visit("layer_number", &Self::layer_number, "place in the model, in debug names");
    visit("attn_mask_type", &Self::attn_mask_type, "see DotProductAttention");
    visit("num_gqa_groups", &Self::num_gqa_groups,
          "heads of key and value; default: the query's number");
    visit("return_bias", &Self::return_bias,
          "returns (output without bias, the output projection's bias)");
    visit("return_layernorm_output", &Self::return_layernorm_output,
          "returns the normalized input too, as the last output");
    visit("input_layernorm", &Self::input_layernorm, "normalizes the input");
    visit("attention_type", &Self::attention_type,
          "self, or cross: key and value come from encoder_output");
    visit("fuse_qkv_params", &Self::fuse_qkv_params,
          "one weight of query, key and value, not three");
    visit("zero_centered_gamma", &Self::zero_centered_gamma,
          "the norm's weight starts at 0, and 1 + weight is the factor");
    visit("qkv_weight_interleaved", &Self::qkv_weight_interleaved,
          "a fused weight is ordered by head: query, key, value of the first, of the second, ...");
    visit("bias", &Self::bias, "the projections add learned biases");
    visit("normalization", &Self::normalization, "LayerNorm or RMSNorm");
    visit("qkv_format", &Self::qkv_format,
          "sbhd: inputs are [seq, batch, hidden]; bshd; thd: [tokens, hidden]");
    visit("softmax_scale", &Self::softmax_scale, "None: 1 / sqrt(kv_channels)");
    ScoreOptions::describe_in<Self>(visit, &Self::scores);
    visit("qk_norm_type", &Self::qk_norm_type,
          "normalizes each head of query and key: L2Normalization, RMSNorm or LayerNorm");
    visit("qk_norm_eps", &Self::qk_norm_eps, "added to their squares");
    visit("qk_norm_before_rope", &Self::qk_norm_before_rope,
          "normalizes before the rotary embedding, not after it");
    visit("rotary_pos_interleaved", &Self::rotary_pos_interleaved,
          "the rotary embedding rotates pairs of neighboring channels; False: pairs a channel "
          "of the first half with one of the second half");
    ParameterOptions::describe_placement_in<Self>(visit, &Self::parameters);
    ParameterOptions::describe_accumulation_in<Self>(visit, &Self::parameters);
    visit("name", &Self::name, "name in debug configurations");
    ParameterOptions::describe_sequence_parallel_in<Self>(visit, &Self::parameters);
    visit("set_parallel_mode", &Self::set_parallel_mode,
          "divides the heads among the ranks of tp_group: column-parallel projections of query, "
          "key and value, row-parallel proj");
    OverlapSwitches::describe_in<Self>(visit, &Self::overlap);
  }
};

struct MultiheadAttentionInputs {
  at::Tensor hidden_states;  // [seq, batch, hidden] for sbhd
  std::vector<at::Tensor> attention_mask = {};
  std::optional<at::Tensor> encoder_output = {};  // for cross attention
  std::optional<std::string> attn_mask_type = {};
  std::optional<bool> is_first_microbatch = {};
  std::vector<at::Tensor> rotary_pos_emb = {};
  ScoreArguments scores = ScoreArguments();

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = MultiheadAttentionInputs;
    visit("hidden_states", &Self::hidden_states, "[seq, batch, hidden] for sbhd");
    visit("attention_mask", &Self::attention_mask, "see DotProductAttention");
    visit("encoder_output", &Self::encoder_output, "input of key and value for cross attention");
    visit("attn_mask_type", &Self::attn_mask_type, "default: the module's setting");
    visit("is_first_microbatch", &Self::is_first_microbatch,
          "whether to quantize and cache the weights (True), use the cached ones (False), or "
          "not cache them (None)");
    visit("rotary_pos_emb", &Self::rotary_pos_emb,
          "angles [seq, 1, 1, channels] for query and key, or one tensor for both; thd uses a "
          "token's position in its sequence; under context parallelism the angles of the whole "
          "sequence");
    ScoreArguments::describe_in<Self>(visit, &Self::scores);
  }
};

// Children, by Transformer Engine's names: layernorm_qkv or qkv (self), layernorm_query or
// query_layer, and key_value (cross), q_norm and k_norm (qk_norm_type with weights),
// core_attention, proj.
class TELENS_EXPORT MultiheadAttention : public CallableModule<MultiheadAttentionInputs> {
 public:
  using Options = MultiheadAttentionOptions;

  explicit MultiheadAttention(MultiheadAttentionOptions options);

  // Returns (output, of hidden_states' shape; proj's bias if return_bias; normalized input if
  // return_layernorm_output).
  Outputs forward(const MultiheadAttentionInputs& inputs) override;

  void set_debug_name(const std::string& name) override;

  // rotary_pos_emb still covers the whole sequences.

  const MultiheadAttentionOptions& options() const { return options_; }

 private:
  struct QueryKeyValue {
    at::Tensor query;
    at::Tensor key;
    at::Tensor value;
    at::Tensor normalized;  // hidden_states; undefined without input_layernorm
  };

  void check_options() const;
  void make_query_projection(std::int64_t out_features, std::vector<ParameterPart> split);
  std::shared_ptr<Linear> make_linear(const char* child, std::int64_t in_features,
                                      std::int64_t out_features, std::vector<ParameterPart> split);

  // (projected, normalized input or undefined)
  std::pair<at::Tensor, at::Tensor> project_query(const MultiheadAttentionInputs& inputs);
  QueryKeyValue project(const MultiheadAttentionInputs& inputs);
  void rotate(QueryKeyValue& qkv, const MultiheadAttentionInputs& inputs) const;
  at::Tensor rotate_packed(const at::Tensor& t, const at::Tensor& angles,
                           const std::optional<at::Tensor>& cu_seqlens,
                           const std::optional<at::Tensor>& starts) const;
  void hand_gradient_casts(const MultiheadAttentionInputs& inputs);
  void make_query_key_norms();
  void normalize(QueryKeyValue& qkv) const;

  RotaryPairs rotary_pairs() const {
    return options_.rotary_pos_interleaved ? RotaryPairs::neighbors : RotaryPairs::halves;
  }
  bool is_cross() const { return options_.attention_type == "cross"; }
  // The order of separate parameters in a joined weight.
  bool interleaved() const { return options_.fuse_qkv_params && options_.qkv_weight_interleaved; }
  std::int64_t head_size() const;
  std::int64_t groups() const;
  // Counts on this rank.
  std::int64_t own_heads() const { return options_.num_attention_heads / ranks_; }
  std::int64_t own_groups() const { return groups() / ranks_; }
  void divide_heads();

  MultiheadAttentionOptions options_;
  std::int64_t ranks_ = 1;  // ranks that share the heads
  // One of the two is set; in self attention it also computes key and value.
  std::shared_ptr<LayerNormLinear> layernorm_query_;
  std::shared_ptr<Linear> query_;
  std::shared_ptr<Linear> key_value_;  // of cross attention
  // Normalize heads; L2Normalization needs neither weight nor module.
  std::shared_ptr<CallableModule<NormInputs>> query_norm_;
  std::shared_ptr<CallableModule<NormInputs>> key_norm_;
  std::shared_ptr<DotProductAttention> core_attention_;
  std::shared_ptr<Linear> proj_;
};

}  // namespace telens
