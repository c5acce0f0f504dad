// An attention block and an MLP with their residual connections.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/modules/fused/layer_norm_mlp.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/module/module.h"
#include "core/modules/norm/norm.h"
#include "core/modules/shared/parameter_options.h"
#include "core/modules/transformer/multihead_attention.h"

namespace telens {

struct TransformerLayerOptions {
  std::int64_t hidden_size = 0;
  std::int64_t ffn_hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::optional<std::int64_t> num_gqa_groups = {};
  double layernorm_epsilon = 1e-5;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;
  ParameterOptions::InitMethod output_layer_init_method = {};
  std::optional<std::int64_t> layer_number = {};
  std::optional<std::int64_t> kv_channels = {};
  std::string self_attn_mask_type = "causal";
  std::string enc_dec_attn_mask_type = "no_mask";
  bool apply_residual_connection_post_layernorm = false;
  bool output_layernorm = false;
  bool parallel_attention_mlp = false;
  std::string layer_type = "encoder";
  bool fuse_qkv_params = false;
  bool zero_centered_gamma = false;
  bool qkv_weight_interleaved = true;
  bool bias = true;
  std::string activation = "gelu";
  ActivationParameters activation_params = {};
  std::string normalization = "LayerNorm";
  std::string attn_input_format = "sbhd";
  std::optional<double> softmax_scale = {};
  ScoreOptions scores = ScoreOptions();
  std::optional<WindowSize> enc_dec_window_size = {};
  std::optional<bool> enc_dec_bottom_right_diagonal = {};
  std::string qk_norm_type = {};
  double qk_norm_eps = 1e-6;
  bool qk_norm_before_rope = false;
  bool rotary_pos_interleaved = false;
  double drop_path_rate = 0.0;
  ParameterOptions parameters = ParameterOptions();
  bool set_parallel_mode = false;
  std::string name = {};
  bool ub_tp_comm_overlap = false;
  OverlapSwitches overlap = {.ag = true, .rs = true, .bulk_dgrad = true, .bulk_wgrad = true};

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = TransformerLayerOptions;
    visit("hidden_size", &Self::hidden_size, "size of an input sample");
    visit("ffn_hidden_size", &Self::ffn_hidden_size, "size inside the MLP");
    visit("num_attention_heads", &Self::num_attention_heads, "heads of the query");
    visit("num_gqa_groups", &Self::num_gqa_groups,
          "heads of key and value; default: the query's number");
    visit("layernorm_epsilon", &Self::layernorm_epsilon, "added to the variance");
    visit("hidden_dropout", &Self::hidden_dropout,
          "probability of dropping an element before it is added to the residual");
    visit("attention_dropout", &Self::attention_dropout,
          "probability of dropping an attention weight in training");
    ParameterOptions::describe_init_method_in<Self>(visit, &Self::parameters);
    visit("output_layer_init_method", &Self::output_layer_init_method,
          "fills the weights of proj and fc2 in place; default: as init_method's default");
    visit("layer_number", &Self::layer_number, "place in the model, in debug names");
    visit("kv_channels", &Self::kv_channels,
          "size of a head; default: hidden_size / num_attention_heads");
    visit("self_attn_mask_type", &Self::self_attn_mask_type, "see DotProductAttention");
    visit("enc_dec_attn_mask_type", &Self::enc_dec_attn_mask_type,
          "likewise, for a decoder's "
          "cross attention");
    visit("apply_residual_connection_post_layernorm",
          &Self::apply_residual_connection_post_layernorm,
          "the residual is the output of the layer norm, not its input");
    visit("output_layernorm", &Self::output_layernorm,
          "normalizes the layer's output, not the attention's input");
    visit("parallel_attention_mlp", &Self::parallel_attention_mlp,
          "attention and MLP both read the layer's input (as Falcon does)");
    visit("layer_type", &Self::layer_type,
          "encoder, or decoder: a cross attention follows the self attention");
    visit("fuse_qkv_params", &Self::fuse_qkv_params,
          "one weight of query, key and value, not three");
    visit("zero_centered_gamma", &Self::zero_centered_gamma,
          "the norms' weights start at 0, and 1 + weight is the factor");
    visit("qkv_weight_interleaved", &Self::qkv_weight_interleaved,
          "a fused weight is ordered by head: query, key, value of the first, of the second, ...");
    visit("bias", &Self::bias, "the linear layers add learned biases");
    visit("activation", &Self::activation, "see LayerNormMLP");
    visit("normalization", &Self::normalization, "LayerNorm or RMSNorm");
    visit("attn_input_format", &Self::attn_input_format,
          "sbhd: inputs are [seq, batch, hidden]; bshd; thd: [tokens, hidden]");
    visit("softmax_scale", &Self::softmax_scale, "None: 1 / sqrt(kv_channels)");
    ScoreOptions::describe_in<Self>(visit, &Self::scores);
    visit("enc_dec_window_size", &Self::enc_dec_window_size,
          "window_size of a decoder's cross attention");
    visit("enc_dec_bottom_right_diagonal", &Self::enc_dec_bottom_right_diagonal,
          "bottom_right_diagonal of a decoder's cross attention");
    visit("qk_norm_type", &Self::qk_norm_type, "see MultiheadAttention");
    visit("qk_norm_eps", &Self::qk_norm_eps, "see MultiheadAttention");
    visit("qk_norm_before_rope", &Self::qk_norm_before_rope, "see MultiheadAttention");
    visit("rotary_pos_interleaved", &Self::rotary_pos_interleaved, "see MultiheadAttention");
    visit("drop_path_rate", &Self::drop_path_rate,
          "probability of dropping, in training, the outputs of self attention and MLP before the "
          "residual, per index of the first dimension");
    ParameterOptions::describe_placement_in<Self>(visit, &Self::parameters);
    ParameterOptions::describe_accumulation_in<Self>(visit, &Self::parameters);
    visit("name", &Self::name, "name in debug configurations");
    ParameterOptions::describe_sequence_parallel_in<Self>(visit, &Self::parameters);
    visit("set_parallel_mode", &Self::set_parallel_mode,
          "divides heads and ffn_hidden_size among the ranks of tp_group");
    visit("activation_params", &Self::activation_params, "see LayerNormMLP");
    visit("ub_tp_comm_overlap", &Self::ub_tp_comm_overlap,
          "communication overlaps with GEMMs, as the other ub_* arguments say");
    OverlapSwitches::describe_in<Self>(visit, &Self::overlap);
  }
};

struct TransformerLayerInputs {
  at::Tensor hidden_states;  // [seq, batch, hidden] for sbhd
  std::vector<at::Tensor> attention_mask = {};
  std::optional<std::string> self_attn_mask_type = {};
  std::optional<at::Tensor> encoder_output = {};
  std::vector<at::Tensor> enc_dec_attn_mask = {};
  std::optional<std::string> enc_dec_attn_mask_type = {};
  std::optional<bool> is_first_microbatch = {};
  std::vector<at::Tensor> rotary_pos_emb = {};
  ScoreArguments scores = ScoreArguments();
  std::optional<WindowSize> enc_dec_window_size = {};
  std::optional<bool> enc_dec_bottom_right_diagonal = {};

  template <typename Visitor>
  static void describe(Visitor&& visit) {
    using Self = TransformerLayerInputs;
    visit("hidden_states", &Self::hidden_states, "[seq, batch, hidden] for sbhd");
    visit("attention_mask", &Self::attention_mask, "see DotProductAttention");
    visit("self_attn_mask_type", &Self::self_attn_mask_type, "default: the module's setting");
    visit("encoder_output", &Self::encoder_output, "input of a decoder's cross attention");
    visit("enc_dec_attn_mask", &Self::enc_dec_attn_mask, "mask of the cross attention");
    visit("enc_dec_attn_mask_type", &Self::enc_dec_attn_mask_type,
          "default: the module's "
          "setting");
    visit("is_first_microbatch", &Self::is_first_microbatch,
          "whether to quantize and cache the weights (True), use the cached ones (False), or "
          "not cache them (None)");
    visit("rotary_pos_emb", &Self::rotary_pos_emb,
          "angles [seq, 1, 1, channels] of query and key, or one tensor for both");
    ScoreArguments::describe_in<Self>(visit, &Self::scores);
    visit("enc_dec_window_size", &Self::enc_dec_window_size, "default: the module's setting");
    visit("enc_dec_bottom_right_diagonal", &Self::enc_dec_bottom_right_diagonal,
          "default: the module's setting");
  }
};

// Children, by Transformer Engine's names: self_attention, inter_attention (decoder),
// layernorm_mlp, layernorm (output_layernorm).
class TELENS_EXPORT TransformerLayer : public CallableModule<TransformerLayerInputs> {
 public:
  using Options = TransformerLayerOptions;

  explicit TransformerLayer(TransformerLayerOptions options);

  // Returns hidden_states' shape in its dtype (torch.autocast's if enabled).
  Outputs forward(const TransformerLayerInputs& inputs) override;

  void set_debug_name(const std::string& name) override;

  const TransformerLayerOptions& options() const { return options_; }

 private:
  void check_options() const;
  MultiheadAttentionOptions attention_options(bool cross) const;
  LayerNormMLPOptions mlp_options() const;
  OverlapSwitches overlap() const;
  void make_output_norm();

  // residual + x after hidden_dropout and, for a branch, drop_path_rate
  at::Tensor add_to(const at::Tensor& residual, const at::Tensor& x, bool drops_path) const;
  MultiheadAttentionInputs cross_inputs(const TransformerLayerInputs& inputs,
                                        const at::Tensor& hidden) const;
  at::Tensor attend(MultiheadAttention& attention, const MultiheadAttentionInputs& inputs);

  TransformerLayerOptions options_;
  std::shared_ptr<MultiheadAttention> self_attention_;
  std::shared_ptr<MultiheadAttention> inter_attention_;
  std::shared_ptr<LayerNormMLP> layernorm_mlp_;
  std::shared_ptr<CallableModule<NormInputs>> layernorm_;
};

}  // namespace telens
