#include "core/modules/fused/layer_norm_linear.h"

#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/parameter_options.h"

namespace telens {

LayerNormLinear::LayerNormLinear(LayerNormLinearOptions options)
    : options_(std::move(options)), operation_(options_.name, "LayerNormLinear") {
  check_epsilon("LayerNormLinear", "eps", options_.eps);
  resolve_split("LayerNormLinear", options_.parameters_split, options_.out_features);
  LinearParallel parallel = linear_parallel("LayerNormLinear", options_.parameters);
  if (parallel.mode == ParallelMode::row && parallel.is_divided()) {
    raise<UsageError>(
        "LayerNormLinear: parallel_mode row would normalize only this rank's features; use "
        "LayerNorm, then Linear with parallel_mode row");
  }
  parallel.request_overlap("LayerNormLinear", options_.overlap, options_.parameters);
  operation_.set_parallel(parallel);
  const auto register_norm = [&](std::string name, at::Tensor& slot, at::Tensor value) {
    place(name, parallel.norm_placement());
    register_slot(std::move(name), slot, std::move(value));
  };
  const auto register_bias = [&](std::string name, at::Tensor& slot, at::Tensor value) {
    place(name, parallel.bias_placement());
    register_slot(std::move(name), slot, std::move(value));
  };
  const auto register_weights = [&](std::string name, Weight& slot, at::Tensor value) {
    place(name, parallel.weight_placement());
    register_weight(std::move(name), slot, std::move(value));
  };
  norm_.make({.features = options_.in_features,
              .normalization = options_.normalization,
              .eps = options_.eps,
              .zero_centered_gamma = options_.zero_centered_gamma},
             options_.parameters, register_norm);
  linear_.make(own_parameters("LayerNormLinear",
                              {.in_features = options_.in_features,
                               .out_features = options_.out_features,
                               .bias = options_.bias,
                               .split = options_.parameters_split},
                              parallel),
               options_.parameters, register_weights, register_bias);
}

Outputs LayerNormLinear::forward(const LayerNormLinearInputs& inputs) {
  const at::Tensor x = to_activation_dtype(inputs.inp);
  const at::Tensor bias = linear_.bias();
  LinearCall call{.is_first_microbatch = inputs.is_first_microbatch,
                  .fp8_output = inputs.fp8_output,
                  .fp8_grad = inputs.fp8_grad,
                  .accumulates_wgrad = options_.parameters.fuse_wgrad_accumulation,
                  .delays_wgrad = options_.parameters.delay_wgrad_compute,
                  .training = is_training()};
  const at::Tensor applied = options_.return_bias ? at::Tensor() : bias;
  at::Tensor normalized;  // if requested
  if (options_.return_layernorm_output) normalized = norm_(x);
  if (normalized.defined() && options_.return_layernorm_output_gathered &&
      operation_.parallel().gathers_input()) {
    normalized = gather_normalized(normalized, operation_, call);
  }
  const auto normalize = [&](FusedCast* cast) { return norm_(x, cast); };
  Outputs outputs{normalized.defined()
                      ? operation_(normalized, linear_.weight(), applied, call)
                      : operation_({x.sizes(), x, normalize}, linear_.weight(), applied, call)};
  if (options_.return_bias) outputs.push_back(bias);
  if (normalized.defined()) outputs.push_back(normalized);
  return outputs;
}

at::Tensor LayerNormLinear::extra_state() const { return operation_.quantization().extra_state(); }

void LayerNormLinear::load_extra_state(const at::Tensor& bytes, const std::string& key) {
  operation_.quantization().set_extra_state(bytes, key);
}

void LayerNormLinear::set_debug_name(const std::string& name) {
  options_.name = name;
  operation_.hooks().set_name(name);
}

}  // namespace telens
