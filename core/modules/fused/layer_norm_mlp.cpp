#include "core/modules/fused/layer_norm_mlp.h"

#include "core/modules/fused/mlp_activation.h"
#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

LayerNormMLP::LayerNormMLP(LayerNormMLPOptions options)
    : options_(std::move(options)),
      activation_(options_.activation, options_.activation_params),
      layers_("LayerNormMLP", options_.name),
      fc1_(layers_.add(".fc1")),
      fc2_(layers_.add(".fc2")) {
  check_epsilon("LayerNormMLP", "eps", options_.eps);
  LinearParallel column = linear_parallel("LayerNormMLP", options_.parameters);
  LinearParallel row = column;
  if (options_.set_parallel_mode) {
    column.mode = ParallelMode::column;
    row.mode = ParallelMode::row;
  }
  column.request_overlap("LayerNormMLP", options_.overlap.named("fc1"), options_.parameters);
  row.request_overlap("LayerNormMLP", options_.overlap.named("fc2"), options_.parameters);
  fc1_.set_parallel(column);
  fc2_.set_parallel(row);
  const std::int64_t hidden = options_.hidden_size;
  const std::int64_t ffn =
      options_.set_parallel_mode
          ? divide("LayerNormMLP", "ffn_hidden_size", options_.ffn_hidden_size, column.size)
          : options_.ffn_hidden_size;
  const std::int64_t fc1_rows = activation_.gated() ? 2 * ffn : ffn;
  const ParameterOptions& parameters = options_.parameters;
  const ParameterOptions output_parameters =
      parameters.with_init_method(options_.output_layer_init_method);

  norm_.make({.features = hidden,
              .normalization = options_.normalization,
              .eps = options_.eps,
              .zero_centered_gamma = options_.zero_centered_gamma},
             parameters, [&](std::string name, at::Tensor& slot, at::Tensor value) {
               place(name, column.norm_placement());
               register_slot(std::move(name), slot, std::move(value));
             });
  register_weight("fc1_weight", fc1_weight_, parameters.make_weight({fc1_rows, hidden}));
  if (options_.bias) register_slot("fc1_bias", fc1_bias_, parameters.make_constant({fc1_rows}, 0));
  register_weight("fc2_weight", fc2_weight_, output_parameters.make_weight({hidden, ffn}));
  if (options_.bias) register_slot("fc2_bias", fc2_bias_, parameters.make_constant({hidden}, 0));
  place("fc1_weight", column.weight_placement());
  place("fc1_bias", column.bias_placement());
  place("fc2_weight", row.weight_placement());
  place("fc2_bias", row.bias_placement());
}

Outputs LayerNormMLP::forward(const LayerNormMLPInputs& inputs) {
  LinearCall call{.is_first_microbatch = inputs.is_first_microbatch,
                  .accumulates_wgrad = options_.parameters.fuse_wgrad_accumulation,
                  .delays_wgrad = options_.parameters.delay_wgrad_compute,
                  .training = is_training()};
  const bool composed = activation_.kernel() == nullptr;
  if (current_autocast() != nullptr && at::GradMode::is_enabled() && !composed) {
    call.gradient_cast = c10::make_intrusive<GradientCast>();
  }
  const at::Tensor x = to_activation_dtype(inputs.inp);
  at::Tensor normalized;  // if requested
  if (options_.return_layernorm_output) normalized = norm_(x);
  if (normalized.defined() && options_.return_layernorm_output_gathered &&
      fc1_.parallel().gathers_input()) {
    normalized = gather_normalized(normalized, fc1_, call);
  }
  const auto normalize = [&](FusedCast* cast) { return norm_(x, cast); };
  const at::Tensor inner = normalized.defined()
                               ? fc1_(normalized, fc1_weight_, fc1_bias_, call)
                               : fc1_({x.sizes(), x, normalize}, fc1_weight_, fc1_bias_, call);
  call.input_is_whole = false;

  const auto activated = [&, of_gradient = std::exchange(call.gradient_cast, {})](FusedCast* cast) {
    return activate(*activation_.kernel(), inner, {cast, of_gradient});
  };
  std::vector<std::int64_t> sizes = inner.sizes().vec();
  if (activation_.gated()) sizes.back() /= 2;
  const at::Tensor applied = options_.return_bias ? at::Tensor() : fc2_bias_;
  Outputs outputs{composed ? fc2_(activation_.compose(inner), fc2_weight_, applied, call)
                           : fc2_({sizes, inner, activated}, fc2_weight_, applied, call)};
  if (options_.return_bias) outputs.push_back(fc2_bias_);
  if (normalized.defined()) outputs.push_back(normalized);
  return outputs;
}

at::Tensor LayerNormMLP::extra_state() const { return layers_.extra_state(); }

void LayerNormMLP::load_extra_state(const at::Tensor& bytes, const std::string& key) {
  layers_.set_extra_state(bytes, key);
}

void LayerNormMLP::set_debug_name(const std::string& name) {
  options_.name = name;
  layers_.set_name(name);
}

}  // namespace telens
