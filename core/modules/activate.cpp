#include "core/modules/activate.h"
#include "core/modules/second_derivative.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class ActivateFunction : public torch::autograd::Function<ActivateFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const std::string& activation) {
    context->save_for_backward({x});
    context->saved_data["activation"] = activation;
    return ops::activation_forward(x, ops::activation_from_name(activation));
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    refuse_second_derivative(context->saved_data["activation"].toStringRef());
    const at::Tensor x = context->get_saved_variables()[0];
    const ops::Activation& activation =
        ops::activation_from_name(context->saved_data["activation"].toStringRef());
    return {ops::activation_backward(grads[0], x, activation), {}};
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

// FP64 is for checking numbers: LibTorch's operators, as often differentiable as they are.
at::Tensor activate_in_double(const ops::Activation& activation, const at::Tensor& x) {
  if (!activation.gated) return apply_in_double(activation.function, x);
  const auto halves = x.chunk(2, -1);
  return apply_in_double(activation.function, halves[0]) * halves[1];
}

}  // namespace

at::Tensor activate(const ops::Activation& activation, const at::Tensor& x) {
  if (x.scalar_type() == at::kDouble) return activate_in_double(activation, x);
  return ActivateFunction::apply(x, std::string(activation.name));
}

}  // namespace telens
