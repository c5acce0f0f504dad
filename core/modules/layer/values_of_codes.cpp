#include "core/modules/layer/values_of_codes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "core/quantization/carried_codes.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class ValuesFunction : public torch::autograd::Function<ValuesFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            at::ScalarType dtype) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->saved_data["dtype"] = tensor.scalar_type();
    QuantizedTensor asked = *carried_codes(tensor);
    asked.dtype = dtype;
    return asked.dequantize();
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0].to(context->saved_data["dtype"].toScalarType()), at::Tensor()};
  }
};

}  // namespace

at::Tensor values_of_codes(const at::Tensor& tensor, std::optional<at::ScalarType> dtype) {
  if (!stands_for_codes(tensor)) return tensor;
  return ValuesFunction::apply(tensor, dtype.value_or(tensor.scalar_type()));
}

}  // namespace telens
