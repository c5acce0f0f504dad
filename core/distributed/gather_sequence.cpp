#include "core/distributed/gather_sequence.h"

#include <torch/csrc/autograd/custom_function.h>

#include "core/distributed/collectives.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct KeptGroup final : torch::CustomClassHolder {
  explicit KeptGroup(ProcessGroupPtr kept) : group(std::move(kept)) {}
  ProcessGroupPtr group;
};

class GatherSequenceFunction : public torch::autograd::Function<GatherSequenceFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const ProcessGroupPtr* group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["group"] =
        c10::IValue::make_capsule(c10::make_intrusive<KeptGroup>(*group));
    return gather_rows(x, *group).wait();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto holder = context->saved_data["group"].toCapsule();
    const auto& kept = static_cast<const KeptGroup&>(*holder);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return {sum_and_scatter_rows(grads[0], kept.group).wait(), at::Tensor()};
  }
};

}  // namespace

at::Tensor gather_sequence(const at::Tensor& x, const ProcessGroupPtr& group) {
  return GatherSequenceFunction::apply(x, &group);
}

}  // namespace telens
