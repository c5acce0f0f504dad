// Activations on the CPU. Elements are independent, so the number of threads does not change a bit.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "core/kernels/cpu/grain.h"
#include "core/kernels/cpu/norm_activation/rows.h"
#include "core/ops/activation.h"
#include "core/ops/checks.h"

namespace telens {
namespace {

// The rows [begin, end) of the input. A row of a plain activation is one element, so that any range
// is contiguous.
struct Layout {
  ActivationRow row;
  std::int64_t rows;
  std::int64_t element_size;
};

Layout make_layout(const at::Tensor& x, const ops::Activation& activation) {
  const std::int64_t width = activation.gated ? x.size(-1) / 2 : 1;
  const std::int64_t outputs = activation.gated ? x.numel() / 2 : x.numel();
  return {.row = {.function = activation.function,
                  .gated = activation.gated,
                  .format = ops::check_high_precision("activation", "x", x.scalar_type()),
                  .length = width},
          .rows = outputs == 0 ? 0 : outputs / width,
          .element_size = static_cast<std::int64_t>(x.element_size())};
}

// Calls work(row, output_offset, input_offset) for each contiguous range; offsets are in bytes.
template <typename Work>
void for_each_stretch(const Layout& layout, const Work& work) {
  const std::int64_t width = layout.row.length;
  const std::int64_t bytes = width * layout.element_size;
  const std::int64_t grain =
      std::max<std::int64_t>(1, kernels::kGrain / std::max<std::int64_t>(1, width));
  at::parallel_for(0, layout.rows, grain, [&](std::int64_t begin, std::int64_t end) {
    ActivationRow row = layout.row;
    if (!row.gated) {
      row.length = end - begin;
      work(row, begin * bytes, begin * bytes);
      return;
    }
    for (std::int64_t i = begin; i < end; ++i) work(row, i * bytes, 2 * i * bytes);
  });
}

at::Tensor activation_forward(const at::Tensor& x, c10::string_view name) {
  const ops::Activation& activation = ops::activation_from_name(name);
  const auto sizes = ops::check_activation(x, activation);
  const at::Tensor source = x.contiguous();
  at::Tensor y = at::empty(sizes, x.options());
  const auto* from = static_cast<const char*>(source.const_data_ptr());
  auto* to = static_cast<char*>(y.mutable_data_ptr());
  for_each_stretch(make_layout(x, activation),
                   [&](const ActivationRow& row, std::int64_t output, std::int64_t input) {
                     activate_row(row, from + input, to + output);
                   });
  return y;
}

at::Tensor activation_backward(const at::Tensor& grad, const at::Tensor& x, c10::string_view name) {
  const ops::Activation& activation = ops::activation_from_name(name);
  ops::check_activation_gradient(grad, x, activation);
  const at::Tensor source = x.contiguous();
  const at::Tensor gradient = grad.contiguous();
  at::Tensor dx = at::empty(x.sizes(), x.options());
  const auto* from = static_cast<const char*>(source.const_data_ptr());
  const auto* of_output = static_cast<const char*>(gradient.const_data_ptr());
  auto* to = static_cast<char*>(dx.mutable_data_ptr());
  for_each_stretch(make_layout(x, activation),
                   [&](const ActivationRow& row, std::int64_t output, std::int64_t input) {
                     activate_row_backward(row, of_output + output, from + input, to + input);
                   });
  return dx;
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("activation_forward", telens::activation_forward);
  library.impl("activation_backward", telens::activation_backward);
}
