#include "core/distributed/gather_sequence.h"

#include <torch/csrc/autograd/custom_function.h>

#include "core/distributed/collectives.h"
#include "core/distributed/kept_group.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor scatter_sum(const at::Tensor& x, const ProcessGroupPtr& group);

class GatherSequenceFunction : public torch::autograd::Function<GatherSequenceFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const ProcessGroupPtr* group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["group"] = GroupHolder::keep(*group);
    return gather_rows(x, *group).wait();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const ProcessGroupPtr group = GroupHolder::of(context->saved_data["group"]);
    return {scatter_sum(grads[0], group), at::Tensor()};
  }
};

// The adjoint: this rank's rows of the sum over ranks.
class ScatterSumFunction : public torch::autograd::Function<ScatterSumFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const ProcessGroupPtr* group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["group"] = GroupHolder::keep(*group);
    return sum_and_scatter_rows(x, *group).wait();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const ProcessGroupPtr group = GroupHolder::of(context->saved_data["group"]);
    return {gather_sequence(grads[0], group), at::Tensor()};
  }
};

at::Tensor scatter_sum(const at::Tensor& x, const ProcessGroupPtr& group) {
  return ScatterSumFunction::apply(x, &group);
}

}  // namespace

at::Tensor gather_sequence(const at::Tensor& x, const ProcessGroupPtr& group) {
  return GatherSequenceFunction::apply(x, &group);
}

}  // namespace telens
