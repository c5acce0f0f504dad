#include "core/modules/linear/landed_rows.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>

#include "core/ops/tensor_version.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class JoinIntoFunction : public torch::autograd::Function<JoinIntoFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, at::TensorList parts,
                            const at::Tensor* buffer) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    std::vector<std::int64_t> rows;
    for (const at::Tensor& part : parts) rows.push_back(part.size(0));
    context->saved_data["rows"] = rows;
    at::Tensor joined = output_view(*buffer);
    at::cat_out(joined, parts);
    return joined;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list parts = gradients[0].split_with_sizes(context->saved_data["rows"].toIntVector());
    parts.emplace_back();  // for the buffer
    return parts;
  }
};

class LandGradientFunction : public torch::autograd::Function<LandGradientFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor,
                            const at::Tensor* buffer) {
    context->saved_data["buffer"] = *buffer;
    return tensor.view_as(tensor);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor landed = output_view(context->saved_data["buffer"].toTensor());
    landed.copy_(gradients[0]);
    return {landed, at::Tensor()};
  }
};

}  // namespace

at::Tensor output_view(const at::Tensor& buffer) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor place = buffer.view(buffer.sizes());
  if (!buffer.is_inference()) {
    torch::autograd::impl::set_version_counter(place,
                                               torch::autograd::impl::version_counter(buffer));
    bump_version(place);
  }
  return place;
}

at::Tensor join_into(const std::vector<at::Tensor>& parts, const at::Tensor& buffer) {
  return JoinIntoFunction::apply(at::TensorList(parts), &buffer);
}

at::Tensor with_landed_gradient(const at::Tensor& tensor, const at::Tensor& buffer) {
  return LandGradientFunction::apply(tensor, &buffer);
}

}  // namespace telens
