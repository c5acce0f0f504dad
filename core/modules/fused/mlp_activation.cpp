#include "core/modules/fused/mlp_activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/modules/shared/activation_dtype.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/quantization/current_scaling.h"

namespace telens {
namespace {

constexpr std::string_view kGlu = "glu";
constexpr std::string_view kClampedSwiglu = "clamped_swiglu";

[[noreturn]] void raise_unknown(const std::string& name) {
  std::vector<std::string_view> names;
  for (const ops::Activation& row : ops::kActivations) names.push_back(row.name);
  names.insert(names.end(), {kGlu, kClampedSwiglu});
  raise<UsageError>("activation '{}' is unknown; expected one of {}", name, fmt::join(names, ", "));
}

}  // namespace

MlpActivation::MlpActivation(const std::string& name, const ActivationParameters& parameters)
    : clamped_(name == kClampedSwiglu) {
  const auto row = std::ranges::find(ops::kActivations, name, &ops::Activation::name);
  if (row != ops::kActivations.end()) {
    kernel_ = &*row;
  } else if (name != kGlu && !clamped_) {
    raise_unknown(name);
  }
  for (const auto& [parameter, value] : parameters) {
    if (clamped_ && parameter == "limit" && value > 0) {
      limit_ = value;
    } else if (clamped_ && parameter == "alpha") {
      alpha_ = value;
    } else if (clamped_ && parameter == "glu_linear_offset") {
      offset_ = value;
    } else {
      raise<UsageError>(
          "activation_params: {}={} does not go with activation '{}'; clamped_swiglu takes limit "
          "(above 0), alpha and glu_linear_offset, the others nothing",
          parameter, value, name);
    }
  }
}

at::Tensor MlpActivation::compose(const at::Tensor& x) const {
  if (x.size(-1) % 2 != 0) {
    raise<ShapeError>("x is {}; a gated activation halves the last dimension, which must be even",
                      x.sizes());
  }
  const at::Tensor wide = to_accumulation_dtype(x);
  const auto halves = wide.chunk(2, -1);
  if (!clamped_) return (at::sigmoid(halves[0]) * halves[1]).to(x.scalar_type());
  const at::Tensor gate = halves[0].clamp_max(limit_);
  const at::Tensor linear = halves[1].clamp(-limit_, limit_) + offset_;
  return (gate * at::sigmoid(gate * alpha_) * linear).to(x.scalar_type());
}

// ---- activation functions with their gradients

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor cast_activation(const at::Tensor& x, const ops::Activation& activation,
                           FusedCast& cast) {
  cast.codes = ops::activation_quantize(x, activation, cast.scale);
  return placeholder(ops::check_activation(x, activation), x);
}

at::Tensor cast_gradient(const at::Tensor& grad, const at::Tensor& x,
                         const ops::Activation& activation, const GradientCast& cast) {
  ops::QuantizedGradient quantized =
      ops::activation_backward_quantize(grad, x, activation, *cast.scale, cast.bias_dtype);
  auto gradient = c10::make_intrusive<FusedGradient>();
  gradient->codes = wrap_codes(std::move(quantized.codes), cast.scale->scale, cast.scale->format,
                               x.scalar_type());
  gradient->bias = std::move(quantized.dbias);
  return placeholder_with(std::move(gradient), x.sizes(), x);
}

class ActivateFunction : public torch::autograd::Function<ActivateFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::string& activation, const ActivationCasts* casts) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({x});
    context->saved_data["activation"] = activation;
    if (casts->backward) {
      context->saved_data["cast"] = c10::IValue::make_capsule(casts->backward);
    }
    const ops::Activation& function = ops::activation_from_name(activation);
    return casts->forward != nullptr ? cast_activation(x, function, *casts->forward)
                                     : ops::activation_forward(x, function);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    return translating_errors([&] { return compute_gradients(context, grads); });
  }

 private:
  static variable_list compute_gradients(AutogradContext* context, const variable_list& grads) {
    check_no_second_derivative(context->saved_data["activation"].toStringRef());
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::Tensor x = context->get_saved_variables()[0];
    const ops::Activation& activation =
        ops::activation_from_name(context->saved_data["activation"].toStringRef());
    const auto kept = context->saved_data.find("cast");
    if (kept != context->saved_data.end()) {
      const auto holder = kept->second.toCapsule();
      const auto& cast = static_cast<const GradientCast&>(*holder);
      if (cast.scale) return {cast_gradient(grads[0], x, activation, cast), {}, {}};
    }
    return {ops::activation_backward(grads[0], x, activation), {}, {}};
  }
};

at::Tensor apply_in_double(ops::ActivationFunction function, const at::Tensor& x) {
  switch (function) {
    case ops::ActivationFunction::gelu:
      return at::gelu(x, "tanh");
    case ops::ActivationFunction::qgelu:
      return x * at::sigmoid(1.702 * x);
    case ops::ActivationFunction::relu:
      return at::relu(x);
    case ops::ActivationFunction::srelu:
      return at::relu(x).square();
    case ops::ActivationFunction::silu:
      break;
  }
  return at::silu(x);
}

// FP64 is for verification: LibTorch's operators, with their higher derivatives.
at::Tensor activate_in_double(const ops::Activation& activation, const at::Tensor& x) {
  if (!activation.gated) return apply_in_double(activation.function, x);
  const auto halves = x.chunk(2, -1);
  return apply_in_double(activation.function, halves[0]) * halves[1];
}

}  // namespace

at::Tensor activate(const ops::Activation& activation, const at::Tensor& x,
                    const ActivationCasts& casts) {
  if (x.scalar_type() == at::kDouble) return activate_in_double(activation, x);
  return ActivateFunction::apply(x, std::string(activation.name), &casts);
}

}  // namespace telens
