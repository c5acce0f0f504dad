#include "core/distributed/gather_sequence.h"

#include <torch/csrc/autograd/custom_function.h>

#include "core/distributed/collectives.h"
#include "core/distributed/kept_group.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class GatherSequenceFunction : public torch::autograd::Function<GatherSequenceFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const ProcessGroupPtr* group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["group"] = KeptGroup::keep(*group);
    return gather_rows(x, *group).wait();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const ProcessGroupPtr group = KeptGroup::of(context->saved_data["group"]);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return {sum_and_scatter_rows(grads[0], group).wait(), at::Tensor()};
  }
};

}  // namespace

at::Tensor gather_sequence(const at::Tensor& x, const ProcessGroupPtr& group) {
  return GatherSequenceFunction::apply(x, &group);
}

}  // namespace telens
