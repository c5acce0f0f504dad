#include "core/modules/norm/norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rms_norm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/modules/shared/parameter_options.h"
#include "core/ops/device.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

ops::NormOutputs norm(const at::Tensor& x, const at::Tensor& weight,
                      const std::optional<at::Tensor>& bias, bool centered,
                      const ops::NormOptions& options) {
  return centered ? ops::layer_norm_forward(x, weight, bias, options)
                  : ops::rms_norm_forward(x, weight, options);
}

ops::NormOutputs cast_norm(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, bool centered,
                           const ops::NormOptions& options, FusedCast& cast) {
  ops::QuantizedNorm made = centered
                                ? ops::layer_norm_quantize(x, weight, bias, options, cast.scale)
                                : ops::rms_norm_quantize(x, weight, options, cast.scale);
  cast.codes = std::move(made.codes);
  return {placeholder(x.sizes(), x), std::move(made.mean), std::move(made.rstd)};
}

class NormalizeFunction : public torch::autograd::Function<NormalizeFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, bool centered,
                            const ops::NormOptions* options, FusedCast* cast) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const ops::NormOutputs outputs = cast != nullptr
                                         ? cast_norm(x, weight, bias, centered, *options, *cast)
                                         : norm(x, weight, bias, centered, *options);
    context->save_for_backward({x, weight, outputs.mean, outputs.rstd});
    context->saved_data["zero_centered_gamma"] = options->zero_centered_gamma;
    context->saved_data["has_bias"] = bias.has_value();
    return outputs.y;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    return translating_errors([&] { return compute_gradients(context, grads); });
  }

 private:
  static variable_list compute_gradients(AutogradContext* context, const variable_list& grads) {
    check_no_second_derivative("LayerNorm or RMSNorm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &rstd = saved[3];
    const bool zero_centered_gamma = context->saved_data["zero_centered_gamma"].toBool();
    const bool has_bias = context->saved_data["has_bias"].toBool();
    const ops::NormGradients gradients =
        mean.defined()
            ? ops::layer_norm_backward(grads[0], x, weight, mean, rstd, zero_centered_gamma)
            : ops::rms_norm_backward(grads[0], x, weight, rstd, zero_centered_gamma);
    return {gradients.dx, gradients.dweight, has_bias ? gradients.dbias : at::Tensor(), {}, {}, {}};
  }
};

// FP64 is for verification: LibTorch's operators, with their higher derivatives.
at::Tensor normalize_in_double(Normalization normalization, const at::Tensor& x,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const ops::NormOptions& options) {
  const at::Tensor typed = weight.to(at::kDouble);
  const at::Tensor factor = options.zero_centered_gamma ? typed + 1 : typed;
  if (normalization == Normalization::rms_norm) {
    return at::rms_norm(x, weight.sizes(), factor, options.eps);
  }
  return at::layer_norm(x, weight.sizes(), factor,
                        bias ? std::optional(bias->to(at::kDouble)) : std::nullopt, options.eps);
}

}  // namespace

Normalization normalization_from_name(std::string_view name) {
  if (name == "LayerNorm") return Normalization::layer_norm;
  if (name == "RMSNorm") return Normalization::rms_norm;
  raise<UsageError>("normalization '{}' is unknown; expected LayerNorm or RMSNorm", name);
}

at::Tensor normalize(Normalization normalization, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& bias, const ops::NormOptions& options, FusedCast* cast) {
  const bool centered = normalization == Normalization::layer_norm;
  const auto optional_bias = bias.defined() ? std::optional(bias) : std::nullopt;
  if (x.scalar_type() == at::kDouble) {
    return normalize_in_double(normalization, x, weight, optional_bias, options);
  }
  return NormalizeFunction::apply(x, weight, optional_bias, centered, &options, cast);
}

void NormParameters::make(const NormParametersOptions& options, const ParameterOptions& parameters,
                          const RegisterTensor& register_tensor) {
  kind_ = normalization_from_name(options.normalization);
  options_ = {.eps = options.eps, .zero_centered_gamma = options.zero_centered_gamma};
  register_tensor(
      "layer_norm_weight", weight_,
      parameters.make_constant({options.features}, options.zero_centered_gamma ? 0 : 1));
  if (kind_ == Normalization::layer_norm) {
    register_tensor("layer_norm_bias", bias_, parameters.make_constant({options.features}, 0));
  }
}

// ---- the modules LayerNorm and RMSNorm

namespace {

const std::string& get_module_name(Normalization kind) {
  static const std::string kLayerNorm = "LayerNorm";
  static const std::string kRmsNorm = "RMSNorm";
  return kind == Normalization::layer_norm ? kLayerNorm : kRmsNorm;
}

}  // namespace

NormModule::NormModule(Normalization kind, NormModuleOptions options)
    : kind_(kind), options_(std::move(options)) {
  check_epsilon(get_module_name(kind_).c_str(), "eps", options_.eps);
  const auto& sizes = options_.normalized_shape;
  const double initial = options_.zero_centered_gamma ? 0 : 1;
  register_slot("weight", weight_, options_.parameters.make_constant(sizes, initial));
  place("weight", {.sequence_parallel = options_.sequence_parallel});
  if (kind_ == Normalization::rms_norm) return;
  register_slot("bias", bias_, options_.parameters.make_constant(sizes, 0));
  place("bias", {.sequence_parallel = options_.sequence_parallel});
}

Outputs NormModule::forward(const NormInputs& inputs) {
  const std::string& name = get_module_name(kind_);
  ops::check_runs_on(inputs.inp.device(), name);
  return naming_layer(name, [&]() -> Outputs {
    return {normalize(kind_, to_activation_dtype(inputs.inp), weight_, bias_,
                      {.eps = options_.eps, .zero_centered_gamma = options_.zero_centered_gamma})};
  });
}

LayerNorm::LayerNorm(NormModuleOptions options)
    : NormModule(Normalization::layer_norm, std::move(options)) {}

RMSNorm::RMSNorm(NormModuleOptions options)
    : NormModule(Normalization::rms_norm, std::move(options)) {}

}  // namespace telens
