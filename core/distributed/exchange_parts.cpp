#include "core/distributed/exchange_parts.h"

#include <torch/csrc/autograd/custom_function.h>

#include "core/distributed/collectives.h"
#include "core/distributed/kept_group.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class ExchangePartsFunction : public torch::autograd::Function<ExchangePartsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const ProcessGroupPtr* group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["group"] = KeptGroup::keep(*group);
    return swap_parts(x, *group).wait();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const ProcessGroupPtr group = KeptGroup::of(context->saved_data["group"]);
    return {exchange_parts(grads[0], group), at::Tensor()};  // it is its own adjoint
  }
};

}  // namespace

at::Tensor exchange_parts(const at::Tensor& x, const ProcessGroupPtr& group) {
  return ExchangePartsFunction::apply(x, &group);
}

}  // namespace telens
