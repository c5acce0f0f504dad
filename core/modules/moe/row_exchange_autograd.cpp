// Gradients of the operators in row_exchange.h; each uses the other two.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>

#include "core/ops/row_exchange.h"

namespace telens {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Optional weights among the saved tensors.
std::optional<at::Tensor> saved_weights(const at::Tensor& saved) {
  return saved.defined() ? std::optional(saved) : std::nullopt;
}

class SpreadRows : public torch::autograd::Function<SpreadRows> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& places,
                            const std::optional<at::Tensor>& weights, std::int64_t rows) {
    const bool learned = weights && weights->requires_grad();
    context->save_for_backward(
        {places, weights.value_or(at::Tensor()), learned ? x : at::Tensor()});
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return ops::spread_rows(x, places, weights, rows);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor dx;
    at::Tensor dweights;
    if (context->needs_input_grad(0)) {
      dx = ops::combine_rows(grads[0], saved[0], saved_weights(saved[1]));
    }
    if (saved[2].defined()) dweights = ops::row_products(grads[0], saved[2], saved[0]);
    return {dx, {}, dweights, {}};
  }
};

class CombineRows : public torch::autograd::Function<CombineRows> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& places,
                            const std::optional<at::Tensor>& weights) {
    const bool learned = weights && weights->requires_grad();
    context->save_for_backward(
        {places, weights.value_or(at::Tensor()), learned ? x : at::Tensor()});
    context->saved_data["rows"] = x.size(0);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return ops::combine_rows(x, places, weights);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor dx;
    at::Tensor dweights;
    if (context->needs_input_grad(0)) {
      dx = ops::spread_rows(grads[0], saved[0], saved_weights(saved[1]),
                            context->saved_data["rows"].toInt());
    }
    if (saved[2].defined()) dweights = ops::row_products(saved[2], grads[0], saved[0]);
    return {dx, {}, dweights};
  }
};

class RowProducts : public torch::autograd::Function<RowProducts> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& y,
                            const at::Tensor& places) {
    context->save_for_backward({x, y, places});
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return ops::row_products(x, y, places);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor dx;
    at::Tensor dy;
    if (context->needs_input_grad(0)) {
      dx = ops::spread_rows(saved[1], saved[2], grads[0], saved[0].size(0));
    }
    if (context->needs_input_grad(1)) dy = ops::combine_rows(saved[0], saved[2], grads[0]);
    return {dx, dy, {}};
  }
};

at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& places,
                       const std::optional<at::Tensor>& weights, std::int64_t rows) {
  return SpreadRows::apply(x, places, weights, rows);
}

at::Tensor combine_rows(const at::Tensor& x, const at::Tensor& places,
                        const std::optional<at::Tensor>& weights) {
  return CombineRows::apply(x, places, weights);
}

at::Tensor row_products(const at::Tensor& x, const at::Tensor& y, const at::Tensor& places) {
  return RowProducts::apply(x, y, places);
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, Autograd, library) {
  library.impl("spread_rows", telens::spread_rows);
  library.impl("combine_rows", telens::combine_rows);
  library.impl("row_products", telens::row_products);
}
