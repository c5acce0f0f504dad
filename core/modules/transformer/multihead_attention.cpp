#include "core/modules/transformer/multihead_attention.h"

#include "core/distributed/process_group.h"
#include "core/modules/attention/attention_arguments.h"
#include "core/modules/attention/attention_bias.h"
#include "core/modules/attention/rotary_embedding.h"
#include "core/modules/norm/norm.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {
namespace {

// [..., heads * size] -> [..., heads, size]
at::Tensor by_head(const at::Tensor& tensor, std::int64_t head_size) {
  return tensor.unflatten(-1, {-1, head_size});
}

constexpr std::string_view kL2Normalization = "L2Normalization";

// x / sqrt(sum(x^2) + eps) per head, in FP32 (FP64 for FP64), rounded once.
at::Tensor divided_by_norm(const at::Tensor& x, double eps) {
  const at::Tensor wide = to_accumulation_dtype(x);
  return (wide * (wide.square().sum(-1, /*keepdim=*/true) + eps).rsqrt()).to(x.scalar_type());
}

// [..., groups, heads per group, size] -> [..., heads, size]
at::Tensor join_groups(const at::Tensor& tensor) { return tensor.flatten(-3, -2); }

ParameterOptions projection_parameters(const MultiheadAttentionOptions& options, bool output) {
  ParameterOptions parameters =
      output ? options.parameters.with_init_method(options.output_layer_init_method)
             : options.parameters;
  if (options.set_parallel_mode) parameters.parallel_mode = output ? "row" : "column";
  return parameters;
}

// Keys and values of a cross attention do not overlap.
OverlapSwitches get_overlap(std::string_view child, const MultiheadAttentionOptions& options) {
  if (child == "key_value") return {};
  return options.overlap.named(child == "proj" ? "proj" : "qkv");
}

// ALiBi's slopes depend on a head's index among the heads of every rank; this rank has `own` of
// them.
ScoreArguments with_own_slopes(ScoreArguments scores, std::int64_t heads, std::int64_t own,
                               const LinearParallel& parallel, const at::Device& device) {
  if (!is_alibi(scores.core_attention_bias_type) || own == heads || !parallel.group) return scores;
  const at::Tensor given = scores.alibi_slopes.value_or(at::Tensor());
  const at::Tensor slopes = given.defined() ? given : alibi_slopes(heads, device);
  if (slopes.dim() > 0 && slopes.size(-1) == heads) {
    scores.alibi_slopes = slopes.narrow(-1, rank_in(*parallel.group) * own, own);
  }
  return scores;
}

// Selects the angles for a rank's `length` positions in the whole sequence.
at::Tensor angles_of_chunks(const at::Tensor& angles, std::int64_t length, const ContextRank& at) {
  if (at.size == 1) return angles;
  if (angles.size(0) < length * at.size) {
    raise<ShapeError>(
        "MultiheadAttention: rotary_pos_emb has {} positions; {} context-parallel ranks of {} have "
        "{}: give the angles of the whole sequence",
        angles.size(0), at.size, length, length * at.size);
  }
  return own_chunks(angles.narrow(0, 0, length * at.size), 0, at);
}

// places: on the host.
at::Tensor angles_of_places(const at::Tensor& angles, const at::Tensor& places) {
  const std::int64_t most = places.numel() == 0 ? -1 : places.max().item<std::int64_t>();
  if (most >= angles.size(0)) {
    raise<ShapeError>(
        "MultiheadAttention: rotary_pos_emb has {} positions and the longest sequence {}, padding "
        "counted",
        angles.size(0), most + 1);
  }
  return angles.index_select(0, places.to(angles.device()));
}

}  // namespace

MultiheadAttention::MultiheadAttention(MultiheadAttentionOptions options)
    : options_(std::move(options)) {
  check_options();
  divide_heads();
  const std::int64_t query_size = options_.num_attention_heads * head_size();
  const std::int64_t key_value_size = groups() * head_size();
  const bool split = !options_.fuse_qkv_params;
  using Parts = std::vector<ParameterPart>;
  const Parts query_part{{"query", query_size}};
  const Parts key_value_parts{{"key", key_value_size}, {"value", key_value_size}};

  if (is_cross()) {
    make_query_projection(query_size, split ? query_part : Parts());
    key_value_ = make_linear("key_value", options_.hidden_size, 2 * key_value_size,
                             split ? key_value_parts : Parts());
  } else {
    Parts parts = query_part;
    parts.insert(parts.end(), key_value_parts.begin(), key_value_parts.end());
    make_query_projection(query_size + 2 * key_value_size, split ? parts : Parts());
  }
  core_attention_ = register_module(
      "core_attention", std::make_shared<DotProductAttention>(DotProductAttentionOptions{
                            .num_attention_heads = own_heads(),
                            .kv_channels = {head_size()},
                            .num_gqa_groups = own_groups(),
                            .attention_dropout = options_.attention_dropout,
                            .qkv_format = options_.qkv_format,
                            .attn_mask_type = options_.attn_mask_type,
                            .softmax_scale = options_.softmax_scale,
                            .scores = options_.scores,
                            .device = options_.parameters.device}));
  make_query_key_norms();
  proj_ = make_linear("proj", query_size, options_.hidden_size, {});
  proj_->layers()[0]->set_input_scale(core_attention_->scales().output);
  if (!options_.name.empty()) set_debug_name(options_.name);
}

void MultiheadAttention::divide_heads() {
  const char* module = "MultiheadAttention";
  const LinearParallel parallel = linear_parallel(module, options_.parameters);
  if (!options_.set_parallel_mode) return;
  ranks_ = parallel.size;
  divide(module, "num_attention_heads", options_.num_attention_heads, ranks_);
  divide(module, "num_gqa_groups", groups(), ranks_);
}

void MultiheadAttention::check_options() const {
  if (options_.attention_type != "self" && !is_cross()) {
    raise<UsageError>("MultiheadAttention: attention_type is '{}'; expected self or cross",
                      options_.attention_type);
  }
  const std::int64_t heads = options_.num_attention_heads;
  if (options_.hidden_size < 1 || heads < 1 ||
      (!options_.kv_channels && options_.hidden_size % heads != 0)) {
    raise<UsageError>(
        "MultiheadAttention: hidden_size is {} and num_attention_heads {}; the heads must divide "
        "the size unless kv_channels is given",
        options_.hidden_size, heads);
  }
  if (options_.return_layernorm_output && !options_.input_layernorm) {
    raise<UsageError>("MultiheadAttention: return_layernorm_output needs input_layernorm=True");
  }
  check_epsilon("MultiheadAttention", "layernorm_epsilon", options_.layernorm_epsilon);
  check_epsilon("MultiheadAttention", "qk_norm_eps", options_.qk_norm_eps);
  check_probability("MultiheadAttention", "attention_dropout", options_.attention_dropout);
}

void MultiheadAttention::make_query_key_norms() {
  const std::string& type = options_.qk_norm_type;
  if (type.empty() || type == kL2Normalization) return;
  if (type != "RMSNorm" && type != "LayerNorm") {
    raise<UsageError>(
        "MultiheadAttention: qk_norm_type '{}' is unknown; expected L2Normalization, RMSNorm or "
        "LayerNorm",
        type);
  }
  const NormModuleOptions norm{
      .normalized_shape = {head_size()},
      .eps = options_.qk_norm_eps,
      .parameters = options_.parameters,
      // A rank's gradient covers its heads; Megatron-LM sums parameters with this attribute over
      // the group.
      .sequence_parallel = ranks_ > 1 ? std::optional(true) : std::nullopt};
  const auto make = [&](const char* child) -> std::shared_ptr<CallableModule<NormInputs>> {
    if (type == "RMSNorm") return register_module(child, std::make_shared<RMSNorm>(norm));
    return register_module(child, std::make_shared<LayerNorm>(norm));
  };
  query_norm_ = make("q_norm");
  key_norm_ = make("k_norm");
}

void MultiheadAttention::make_query_projection(std::int64_t out_features,
                                               std::vector<ParameterPart> split) {
  if (!options_.input_layernorm) {
    const char* child = is_cross() ? "query_layer" : "qkv";
    query_ = make_linear(child, options_.hidden_size, out_features, std::move(split));
    return;
  }
  layernorm_query_ =
      register_module(is_cross() ? "layernorm_query" : "layernorm_qkv",
                      std::make_shared<LayerNormLinear>(LayerNormLinearOptions{
                          .in_features = options_.hidden_size,
                          .out_features = out_features,
                          .eps = options_.layernorm_epsilon,
                          .normalization = options_.normalization,
                          .bias = options_.bias,
                          .return_layernorm_output = options_.return_layernorm_output,
                          .zero_centered_gamma = options_.zero_centered_gamma,
                          .parameters = projection_parameters(options_, false),
                          .parameters_split = std::move(split),
                          .overlap = options_.overlap.named("qkv")}));
}

std::shared_ptr<Linear> MultiheadAttention::make_linear(const char* child, std::int64_t in_features,
                                                        std::int64_t out_features,
                                                        std::vector<ParameterPart> split) {
  const bool output = std::string_view(child) == "proj";
  return register_module(child, std::make_shared<Linear>(LinearOptions{
                                    .in_features = in_features,
                                    .out_features = out_features,
                                    .bias = options_.bias,
                                    .return_bias = output && options_.return_bias,
                                    .parameters = projection_parameters(options_, output),
                                    .parameters_split = std::move(split),
                                    .overlap = get_overlap(child, options_)}));
}

std::int64_t MultiheadAttention::head_size() const {
  return options_.kv_channels.value_or(options_.hidden_size / options_.num_attention_heads);
}

std::int64_t MultiheadAttention::groups() const {
  return options_.num_gqa_groups.value_or(options_.num_attention_heads);
}

std::pair<at::Tensor, at::Tensor> MultiheadAttention::project_query(
    const MultiheadAttentionInputs& inputs) {
  if (query_) {
    const LinearInputs call{.inp = inputs.hidden_states,
                            .is_first_microbatch = inputs.is_first_microbatch};
    return {(*query_)(call)[0], at::Tensor()};
  }
  const Outputs outputs = (*layernorm_query_)(
      {.inp = inputs.hidden_states, .is_first_microbatch = inputs.is_first_microbatch});
  return {outputs[0], options_.return_layernorm_output ? outputs.back() : at::Tensor()};
}

MultiheadAttention::QueryKeyValue MultiheadAttention::project(
    const MultiheadAttentionInputs& inputs) {
  const std::int64_t size = head_size();
  const auto [projected, normalized] = project_query(inputs);
  if (is_cross()) {
    if (!inputs.encoder_output) {
      raise<UsageError>("MultiheadAttention: cross attention needs encoder_output");
    }
    const at::Tensor key_value = (*key_value_)(
        {.inp = *inputs.encoder_output, .is_first_microbatch = inputs.is_first_microbatch})[0];
    const auto parts = interleaved()
                           ? by_head(key_value, 2 * size).chunk(2, -1)
                           : key_value.unflatten(-1, {2 * own_groups(), size}).chunk(2, -2);
    return {by_head(projected, size), parts[0], parts[1], normalized};
  }
  if (interleaved()) {
    const std::int64_t heads_of_group = options_.num_attention_heads / groups();
    const auto parts = projected.unflatten(-1, {own_groups(), heads_of_group + 2, size})
                           .split_with_sizes({heads_of_group, 1, 1}, -2);
    return {join_groups(parts[0]), join_groups(parts[1]), join_groups(parts[2]), normalized};
  }
  const auto parts =
      by_head(projected, size).split_with_sizes({own_heads(), own_groups(), own_groups()}, -2);
  return {parts[0], parts[1], parts[2], normalized};
}

at::Tensor MultiheadAttention::rotate_packed(const at::Tensor& t, const at::Tensor& angles,
                                             const std::optional<at::Tensor>& cu_seqlens,
                                             const std::optional<at::Tensor>& starts) const {
  // [1, tokens, 1, channels]: angles per token, as in generation with a cache.
  if (angles.dim() == 4 && angles.size(0) == 1 && angles.size(1) == t.size(0)) {
    return apply_rotary_embedding(t.unsqueeze(0), angles, /*batch_dim=*/1, rotary_pairs())
        .squeeze(0);
  }
  if (!cu_seqlens) {
    raise<UsageError>("MultiheadAttention: rotary_pos_emb in thd needs cu_seqlens_q");
  }
  if (core_attention_->context().is_divided()) {
    const at::Tensor places = packed_token_positions("cu_seqlens", starts ? *starts : *cu_seqlens,
                                                     t.size(0), core_attention_->context().place());
    return apply_rotary_embedding(t.unsqueeze(1), angles_of_places(angles, places), 1,
                                  rotary_pairs())
        .squeeze(1);
  }
  return apply_rotary_embedding_packed(t, angles, *cu_seqlens, starts, rotary_pairs());
}

void MultiheadAttention::rotate(QueryKeyValue& qkv, const MultiheadAttentionInputs& inputs) const {
  const std::vector<at::Tensor>& angles = inputs.rotary_pos_emb;
  if (angles.empty()) return;
  if (angles.size() > 2) {
    raise<UsageError>("MultiheadAttention: rotary_pos_emb has {} tensors; expected one or two",
                      angles.size());
  }
  const ScoreArguments& scores = inputs.scores;
  if (options_.qkv_format == "thd") {
    qkv.query =
        rotate_packed(qkv.query, angles.front(), scores.cu_seqlens_q, scores.cu_seqlens_q_padded);
    const bool own = scores.cu_seqlens_kv.has_value();
    qkv.key =
        rotate_packed(qkv.key, angles.back(), own ? scores.cu_seqlens_kv : scores.cu_seqlens_q,
                      own || scores.cu_seqlens_kv_padded ? scores.cu_seqlens_kv_padded
                                                         : scores.cu_seqlens_q_padded);
    return;
  }
  const std::int64_t batch_dim = get_batch_dim(options_.qkv_format);
  const ContextRank at = core_attention_->context().place();
  const auto rotated = [&](const at::Tensor& heads, const at::Tensor& whole) {
    const at::Tensor own = angles_of_chunks(whole, heads.size(1 - batch_dim), at);
    return apply_rotary_embedding(heads, own, batch_dim, rotary_pairs());
  };
  qkv.query = rotated(qkv.query, angles.front());
  qkv.key = rotated(qkv.key, angles.back());
}

void MultiheadAttention::normalize(QueryKeyValue& qkv) const {
  if (query_norm_) {
    qkv.query = (*query_norm_)({.inp = qkv.query.contiguous()})[0];
    qkv.key = (*key_norm_)({.inp = qkv.key.contiguous()})[0];
  } else if (!options_.qk_norm_type.empty()) {
    qkv.query = divided_by_norm(qkv.query, options_.qk_norm_eps);
    qkv.key = divided_by_norm(qkv.key, options_.qk_norm_eps);
  }
}

// A rotary embedding or a norm after a projection changes the quantized gradients: the layers then
// quantize them again.
void MultiheadAttention::hand_gradient_casts(const MultiheadAttentionInputs& inputs) {
  const AttentionScales& scales = core_attention_->scales();
  scales.output->clear();
  const bool changed = !inputs.rotary_pos_emb.empty() || !options_.qk_norm_type.empty();
  const auto hand = [&](Module* projection, bool is_changed) {
    if (projection == nullptr) return;
    projection->layers()[0]->set_gradient_scale(is_changed ? nullptr : scales.input_gradients);
  };
  hand(query_.get(), changed);
  hand(layernorm_query_.get(), changed);
  hand(key_value_.get(), changed);
}

Outputs MultiheadAttention::forward(const MultiheadAttentionInputs& inputs) {
  const bool packed = options_.qkv_format == "thd";
  if (inputs.hidden_states.dim() != (packed ? 2 : 3)) {
    raise<ShapeError>("MultiheadAttention: hidden_states has {} dimensions; expected {}",
                      inputs.hidden_states.dim(),
                      packed                          ? "2, of [tokens, hidden]"
                      : options_.qkv_format == "bshd" ? "3, of [batch, seq, hidden]"
                                                      : "3, of [seq, batch, hidden]");
  }
  hand_gradient_casts(inputs);
  QueryKeyValue qkv = project(inputs);
  if (options_.qk_norm_before_rope) normalize(qkv);
  rotate(qkv, inputs);
  if (!options_.qk_norm_before_rope) normalize(qkv);
  const Outputs attended = (*core_attention_)(
      {.query_layer = qkv.query,
       .key_layer = qkv.key,
       .value_layer = qkv.value,
       .attention_mask = inputs.attention_mask,
       .attn_mask_type = inputs.attn_mask_type,
       .scores = with_own_slopes(inputs.scores, options_.num_attention_heads, own_heads(),
                                 proj_->layers()[0]->parallel(), qkv.query.device())});
  Outputs outputs =
      (*proj_)({.inp = attended[0], .is_first_microbatch = inputs.is_first_microbatch});
  if (options_.return_layernorm_output) outputs.push_back(qkv.normalized);
  return outputs;
}

void MultiheadAttention::set_debug_name(const std::string& name) {
  options_.name = name;
  const char* query = is_cross() ? "linear_q" : "linear_qkv";
  if (layernorm_query_) layernorm_query_->set_debug_name(name + ".layernorm_" + query);
  if (query_) query_->set_debug_name(name + "." + query);
  if (key_value_) key_value_->set_debug_name(name + ".linear_kv");
  core_attention_->set_debug_name(name + ".core_attention");
  proj_->set_debug_name(name + ".proj");
}

}  // namespace telens
