#include "core/modules/linear/grouped_product.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <utility>

#include "core/gemm/gemm.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/ops/fused_quantize.h"
#include "core/ops/gemm.h"
#include "core/ops/matmul.h"
#include "core/ops/torch_internals.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The state of the backward in addition to input and weights.
struct GroupedBackward final : torch::CustomClassHolder {
  std::vector<std::int64_t> rows;
  bool dgrad = false;
  std::vector<bool> wgrad;
  std::vector<bool> bias;
  std::vector<at::ScalarType> weight_dtypes;
  std::vector<at::ScalarType> bias_dtypes;
  at::Tensor dgrad_out;
  std::string layer;
};

std::vector<at::Tensor> cast(at::TensorList tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> typed;
  for (const at::Tensor& each : tensors) typed.push_back(each.to(dtype));
  return typed;
}

at::Tensor new_or(const at::Tensor& buffer, std::int64_t rows, std::int64_t columns,
                  const at::Tensor& like) {
  return buffer.defined() ? output_view(buffer) : at::empty({rows, columns}, like.options());
}

// saved: input, then weights. Results are in the order of the forward's tensors.
variable_list compute_gradients(const GroupedBackward& backward, const variable_list& saved,
                                const at::Tensor& grad_output) {
  const at::Tensor grad = grad_output.contiguous();
  const std::size_t maps = backward.rows.size();
  variable_list gradients(1);
  if (backward.dgrad) {
    std::vector<at::Tensor> columns;
    for (std::size_t i = 0; i < maps; ++i) {
      columns.push_back(ops::transposed_view(saved[1 + i].to(grad.scalar_type())));
    }
    gradients[0] = new_or(backward.dgrad_out, grad.size(0), columns[0].size(0), grad);
    run_grouped_gemm(grad, columns, {}, backward.rows, gradients[0]);
  }
  variable_list of_biases;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < maps; first += backward.rows[i], ++i) {
    const at::Tensor part = grad.narrow(0, first, backward.rows[i]);
    at::Tensor wgrad;
    if (backward.wgrad[i]) {
      const Operand left = part;
      const Operand right = saved[0].narrow(0, first, backward.rows[i]);
      wgrad = run_gemm({.gemm = Gemm::wgrad,
                        .a = left,
                        .b = right,
                        .bias = {},
                        .out_dtype = grad.scalar_type(),
                        .layer = backward.layer})
                  .output.to(backward.weight_dtypes[i]);
    }
    gradients.push_back(std::move(wgrad));
    if (backward.bias.empty()) continue;
    of_biases.push_back(backward.bias[i] ? ops::bias_gradient(part, backward.bias_dtypes[i])
                                         : at::Tensor());
  }
  gradients.insert(gradients.end(), of_biases.begin(), of_biases.end());
  return gradients;
}

class GroupedFunction : public torch::autograd::Function<GroupedFunction> {
 public:
  static at::Tensor forward(AutogradContext* autograd, const at::Tensor& input,
                            at::TensorList weights, at::TensorList biases,
                            const GroupedProduct* product,
                            const c10::intrusive_ptr<GroupedBackward>& backward) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::ScalarType dtype = input.scalar_type();
    const at::Tensor matrix = input.contiguous();
    at::Tensor out = new_or(product->out, matrix.size(0), weights[0].size(0), matrix);
    run_grouped_gemm(matrix, cast(weights, dtype), cast(biases, dtype), product->rows, out);
    variable_list saved{matrix};
    saved.insert(saved.end(), weights.begin(), weights.end());
    autograd->save_for_backward(std::move(saved));
    autograd->saved_data["grouped"] = c10::IValue::make_capsule(backward);
    return out;
  }

  static variable_list backward(AutogradContext* autograd, const variable_list& grad_outputs) {
    return translating_errors([&] {
      const auto holder = autograd->saved_data["grouped"].toCapsule();
      const auto& backward = static_cast<const GroupedBackward&>(*holder);
      check_no_second_derivative(backward.layer);
      const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
      const variable_list saved = autograd->get_saved_variables();
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      variable_list gradients = naming_layer(
          backward.layer, [&] { return compute_gradients(backward, saved, grad_outputs[0]); });
      gradients.resize(gradients.size() + 2);  // for the forward's last two arguments
      return gradients;
    });
  }
};

}  // namespace

at::Tensor multiply_grouped(const GroupedProduct& product) {
  const c10::impl::ExcludeDispatchKeyGuard no_torch_autocast(c10::autocast_dispatch_keyset);
  auto backward = c10::make_intrusive<GroupedBackward>();
  backward->rows = product.rows;
  backward->dgrad = wants_gradient(product.input);
  for (const at::Tensor& weight : product.weights) {
    backward->wgrad.push_back(wants_gradient(weight));
    backward->weight_dtypes.push_back(weight.scalar_type());
  }
  for (const at::Tensor& bias : product.biases) {
    backward->bias.push_back(wants_gradient(bias));
    backward->bias_dtypes.push_back(bias.scalar_type());
  }
  backward->dgrad_out = product.dgrad_out;
  backward->layer = product.layer;
  return GroupedFunction::apply(product.input, at::TensorList(product.weights),
                                at::TensorList(product.biases), &product, backward);
}

// ---- buffers of the caller

namespace {

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
