#include "core/ops/activation.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>

#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"

namespace telens::ops {

const Activation& activation_from_name(std::string_view name) {
  const auto found = std::find_if(kActivations.begin(), kActivations.end(),
                                  [&](const Activation& row) { return row.name == name; });
  if (found == kActivations.end()) {
    std::vector<std::string_view> names;
    for (const Activation& row : kActivations) names.push_back(row.name);
    raise<UsageError>("activation '{}' is unknown; expected one of {}", name,
                      fmt::join(names, ", "));
  }
  return *found;
}

std::vector<std::int64_t> check_activation(const at::Tensor& x, const Activation& activation) {
  check_high_precision("activation", "x", x.scalar_type());
  std::vector<std::int64_t> sizes = x.sizes().vec();
  if (!activation.gated) return sizes;
  if (sizes.empty() || sizes.back() % 2 != 0) {
    raise<ShapeError>(
        "{}: x is {}; a gated activation halves the last dimension, which must be even",
        activation.name, x.sizes());
  }
  sizes.back() /= 2;
  return sizes;
}

void check_activation_gradient(const at::Tensor& grad, const at::Tensor& x,
                               const Activation& activation) {
  const auto expected = check_activation(x, activation);
  if (grad.sizes() != at::IntArrayRef(expected) || grad.scalar_type() != x.scalar_type()) {
    raise<ShapeError>("{}: grad is {} {}; expected {} {}", activation.name,
                      c10::toString(grad.scalar_type()), grad.sizes(),
                      c10::toString(x.scalar_type()), expected);
  }
}

at::Tensor activation_forward(const at::Tensor& x, const Activation& activation) {
  using Signature = at::Tensor(const at::Tensor&, c10::string_view);
  static const auto handle = find_operator<Signature>("telens::activation_forward");
  return handle.call(x, activation.name);
}

at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& x,
                               const Activation& activation) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, c10::string_view);
  static const auto handle = find_operator<Signature>("telens::activation_backward");
  return handle.call(grad, x, activation.name);
}

namespace {

at::Tensor activation_forward_meta(const at::Tensor& x, c10::string_view activation) {
  return at::empty(check_activation(x, activation_from_name(activation)), x.options());
}

at::Tensor activation_backward_meta(const at::Tensor& grad, const at::Tensor& x,
                                    c10::string_view activation) {
  check_activation_gradient(grad, x, activation_from_name(activation));
  return at::empty(x.sizes(), x.options());
}

}  // namespace
}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("activation_forward", telens::ops::activation_forward_meta);
  library.impl("activation_backward", telens::ops::activation_backward_meta);
}
