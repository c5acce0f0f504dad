#include "core/modules/activate.h"
#include "core/modules/second_derivative.h"

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

}  // namespace

at::Tensor activate(const ops::Activation& activation, const at::Tensor& x) {
  return ActivateFunction::apply(x, std::string(activation.name));
}

}  // namespace telens
