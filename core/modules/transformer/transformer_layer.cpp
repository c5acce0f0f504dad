#include "core/modules/transformer/transformer_layer.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros_like.h>

#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {
namespace {

// x / keep if a random number per index of the first dimension keeps it, else 0
// (https://arxiv.org/abs/1603.09382).
at::Tensor drop_path(const at::Tensor& x, double rate) {
  const double keep = 1 - rate;
  if (keep <= 0) return at::zeros_like(x);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[0] = x.size(0);
  const at::Tensor kept = (at::rand(sizes, x.options().dtype(at::kFloat)) + keep).floor();
  return x.div(keep) * kept.to(x.scalar_type());
}

// In a decoder the key lengths refer to the encoder's output; the keys of self attention have the
// queries' lengths.
ScoreArguments with_keys_of_queries(ScoreArguments scores) {
  scores.cu_seqlens_kv = scores.cu_seqlens_q;
  scores.cu_seqlens_kv_padded = scores.cu_seqlens_q_padded;
  scores.max_seqlen_kv = scores.max_seqlen_q;
  return scores;
}

}  // namespace

TransformerLayer::TransformerLayer(TransformerLayerOptions options) : options_(std::move(options)) {
  linear_parallel("TransformerLayer", options_.parameters);
  check_options();
  self_attention_ = register_module("self_attention",
                                    std::make_shared<MultiheadAttention>(attention_options(false)));
  if (options_.layer_type == "decoder") {
    inter_attention_ = register_module(
        "inter_attention", std::make_shared<MultiheadAttention>(attention_options(true)));
  }
  layernorm_mlp_ = register_module("layernorm_mlp", std::make_shared<LayerNormMLP>(mlp_options()));
  if (options_.output_layernorm) make_output_norm();
  if (!options_.name.empty()) set_debug_name(options_.name);
}

void TransformerLayer::check_options() const {
  if (options_.layer_type != "encoder" && options_.layer_type != "decoder") {
    raise<UsageError>("TransformerLayer: layer_type is '{}'; expected encoder or decoder",
                      options_.layer_type);
  }
  if (options_.parallel_attention_mlp &&
      (options_.layer_type == "decoder" || options_.apply_residual_connection_post_layernorm)) {
    raise<UsageError>(
        "TransformerLayer: parallel_attention_mlp goes neither with layer_type decoder nor with "
        "apply_residual_connection_post_layernorm");
  }
  check_epsilon("TransformerLayer", "layernorm_epsilon", options_.layernorm_epsilon);
  check_epsilon("TransformerLayer", "qk_norm_eps", options_.qk_norm_eps);
  check_probability("TransformerLayer", "hidden_dropout", options_.hidden_dropout);
  check_probability("TransformerLayer", "attention_dropout", options_.attention_dropout);
  check_probability("TransformerLayer", "drop_path_rate", options_.drop_path_rate);
}

MultiheadAttentionOptions TransformerLayer::attention_options(bool cross) const {
  const bool input_layernorm = cross || !options_.output_layernorm;
  return {.hidden_size = options_.hidden_size,
          .num_attention_heads = options_.num_attention_heads,
          .kv_channels = options_.kv_channels,
          .attention_dropout = options_.attention_dropout,
          .layernorm_epsilon = options_.layernorm_epsilon,
          .output_layer_init_method = options_.output_layer_init_method,
          .layer_number = options_.layer_number,
          .attn_mask_type = cross ? options_.enc_dec_attn_mask_type : options_.self_attn_mask_type,
          .num_gqa_groups = options_.num_gqa_groups,
          .return_layernorm_output =
              input_layernorm && options_.apply_residual_connection_post_layernorm,
          .input_layernorm = input_layernorm,
          .attention_type = cross ? "cross" : "self",
          .fuse_qkv_params = options_.fuse_qkv_params,
          .zero_centered_gamma = options_.zero_centered_gamma,
          .qkv_weight_interleaved = options_.qkv_weight_interleaved,
          .bias = options_.bias,
          .normalization = options_.normalization,
          .qkv_format = options_.attn_input_format,
          .softmax_scale = options_.softmax_scale,
          .scores =
              cross ? ScoreOptions{.window_size = options_.enc_dec_window_size,
                                   .bottom_right_diagonal = options_.enc_dec_bottom_right_diagonal,
                                   .softmax_type = options_.scores.softmax_type}
                    : options_.scores,
          .qk_norm_type = options_.qk_norm_type,
          .qk_norm_eps = options_.qk_norm_eps,
          .qk_norm_before_rope = options_.qk_norm_before_rope,
          .rotary_pos_interleaved = options_.rotary_pos_interleaved,
          .parameters = options_.parameters,
          .set_parallel_mode = options_.set_parallel_mode,
          .overlap = overlap()};
}

LayerNormMLPOptions TransformerLayer::mlp_options() const {
  return {.hidden_size = options_.hidden_size,
          .ffn_hidden_size = options_.ffn_hidden_size,
          .eps = options_.layernorm_epsilon,
          .bias = options_.bias,
          .normalization = options_.normalization,
          .activation = options_.activation,
          .activation_params = options_.activation_params,
          .output_layer_init_method = options_.output_layer_init_method,
          .return_layernorm_output = options_.apply_residual_connection_post_layernorm,
          .zero_centered_gamma = options_.zero_centered_gamma,
          .set_parallel_mode = options_.set_parallel_mode,
          .parameters = options_.parameters,
          .overlap = overlap()};
}

OverlapSwitches TransformerLayer::overlap() const {
  return options_.ub_tp_comm_overlap ? options_.overlap : OverlapSwitches();
}

void TransformerLayer::make_output_norm() {
  const NormModuleOptions norm{.normalized_shape = {options_.hidden_size},
                               .eps = options_.layernorm_epsilon,
                               .zero_centered_gamma = options_.zero_centered_gamma,
                               .parameters = options_.parameters,
                               .sequence_parallel = options_.parameters.sequence_parallel};
  if (normalization_from_name(options_.normalization) == Normalization::layer_norm) {
    layernorm_ = register_module("layernorm", std::make_shared<LayerNorm>(norm));
  } else {
    layernorm_ = register_module("layernorm", std::make_shared<RMSNorm>(norm));
  }
}

at::Tensor TransformerLayer::add_to(const at::Tensor& residual, const at::Tensor& x,
                                    bool drops_path) const {
  if (!is_training()) return residual + x;
  at::Tensor added = x;
  if (options_.hidden_dropout != 0) added = at::dropout(added, options_.hidden_dropout, true);
  if (drops_path && options_.drop_path_rate != 0) added = drop_path(added, options_.drop_path_rate);
  return residual + added;
}

at::Tensor TransformerLayer::attend(MultiheadAttention& attention,
                                    const MultiheadAttentionInputs& inputs) {
  const Outputs outputs = attention(inputs);
  const bool normalized = attention.options().return_layernorm_output;
  return add_to(normalized ? outputs.back() : inputs.hidden_states, outputs[0],
                &attention == self_attention_.get());
}

MultiheadAttentionInputs TransformerLayer::cross_inputs(const TransformerLayerInputs& inputs,
                                                        const at::Tensor& hidden) const {
  MultiheadAttentionInputs cross{.hidden_states = hidden,
                                 .attention_mask = inputs.enc_dec_attn_mask,
                                 .encoder_output = inputs.encoder_output,
                                 .attn_mask_type = inputs.enc_dec_attn_mask_type,
                                 .is_first_microbatch = inputs.is_first_microbatch,
                                 .rotary_pos_emb = inputs.rotary_pos_emb,
                                 .scores = inputs.scores};
  cross.scores.window_size = inputs.enc_dec_window_size;
  cross.scores.bottom_right_diagonal = inputs.enc_dec_bottom_right_diagonal;
  return cross;
}

Outputs TransformerLayer::forward(const TransformerLayerInputs& inputs) {
  const at::Tensor input = to_activation_dtype(inputs.hidden_states);
  const MultiheadAttentionInputs self{
      .hidden_states = input,
      .attention_mask = inputs.attention_mask,
      .attn_mask_type = inputs.self_attn_mask_type,
      .is_first_microbatch = inputs.is_first_microbatch,
      .rotary_pos_emb = inputs.rotary_pos_emb,
      .scores = inter_attention_ ? with_keys_of_queries(inputs.scores) : inputs.scores};
  at::Tensor output;
  if (options_.parallel_attention_mlp) {
    const at::Tensor attended = (*self_attention_)(self)[0];
    const at::Tensor transformed =
        (*layernorm_mlp_)({.inp = input, .is_first_microbatch = inputs.is_first_microbatch})[0];
    output = add_to(input, attended + transformed, true);
  } else {
    at::Tensor hidden = attend(*self_attention_, self);
    if (inter_attention_) {
      hidden = attend(*inter_attention_, cross_inputs(inputs, hidden));
    }
    const Outputs transformed =
        (*layernorm_mlp_)({.inp = hidden, .is_first_microbatch = inputs.is_first_microbatch});
    const bool normalized = options_.apply_residual_connection_post_layernorm;
    output = add_to(normalized ? transformed.back() : hidden, transformed[0], true);
  }
  if (layernorm_) output = (*layernorm_)({.inp = output})[0];
  return {output};
}

void TransformerLayer::set_debug_name(const std::string& name) {
  options_.name = name;
  self_attention_->set_debug_name(name + ".self_attention");
  if (inter_attention_) inter_attention_->set_debug_name(name + ".inter_attention");
  layernorm_mlp_->set_debug_name(name + ".layernorm_mlp");
}

}  // namespace telens
