#include "core/distributed/exchange_rows.h"

#include <torch/csrc/autograd/custom_function.h>

#include "core/distributed/collectives.h"
#include "core/distributed/kept_group.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class ExchangeRowsFunction : public torch::autograd::Function<ExchangeRowsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const RowCounts* counts,
                            const ProcessGroupPtr* group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["group"] = GroupHolder::keep(*group);
    context->saved_data["sent"] = counts->sent;
    context->saved_data["received"] = counts->received;
    return send_rows(x, *counts, *group).wait();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const RowCounts counts{context->saved_data["sent"].toIntVector(),
                           context->saved_data["received"].toIntVector()};
    const ProcessGroupPtr group = GroupHolder::of(context->saved_data["group"]);
    return {exchange_rows(grads[0], counts.reversed(), group), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor exchange_rows(const at::Tensor& x, const RowCounts& counts,
                         const ProcessGroupPtr& group) {
  return ExchangeRowsFunction::apply(x, &counts, &group);
}

}  // namespace telens
