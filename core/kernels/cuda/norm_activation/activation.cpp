// Activations on CUDA.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "core/kernels/cuda/device.h"
#include "core/kernels/cuda/norm_activation/launchers.h"
#include "core/ops/activation.h"
#include "core/ops/checks.h"

namespace telens::cuda {
namespace {

FormatId get_format(const at::Tensor& x) {
  return ops::check_high_precision("activation", "x", x.scalar_type());
}

// A plain activation is a single row.
struct Layout {
  std::int64_t rows;
  std::int64_t width;

  Layout(const at::Tensor& x, bool gated)
      : rows(gated && x.numel() > 0 ? x.numel() / x.size(-1) : 1),
        width(gated ? x.size(-1) / 2 : x.numel()) {
    if (x.numel() == 0) width = 0;
  }
};

at::Tensor activation_forward_cuda(const at::Tensor& x, c10::string_view name) {
  const ops::Activation& activation = ops::activation_from_name(name);
  const auto sizes = ops::check_activation(x, activation);
  const DeviceScope scope("activation_forward", x);
  const at::Tensor source = x.contiguous();
  at::Tensor y = at::empty(sizes, x.options());
  const Layout layout(x, activation.gated);
  check_launch("activation_forward",
               launch_activation({.x = source.const_data_ptr(),
                                  .rows = layout.rows,
                                  .width = layout.width,
                                  .y = y.mutable_data_ptr(),
                                  .gated = activation.gated,
                                  .scale = nullptr,
                                  .format = FormatId::e4m3,
                                  .amax = nullptr,
                                  .codes = nullptr},
                                 get_format(x), activation.function, scope.context()));
  return y;
}

at::Tensor activation_backward_cuda(const at::Tensor& grad, const at::Tensor& x,
                                    c10::string_view name) {
  const ops::Activation& activation = ops::activation_from_name(name);
  ops::check_activation_gradient(grad, x, activation);
  check_same_device("activation_backward", {x, grad});
  const DeviceScope scope("activation_backward", x);
  const at::Tensor source = x.contiguous();
  const at::Tensor gradient = grad.contiguous();
  at::Tensor dx = at::empty(x.sizes(), x.options());
  const Layout layout(x, activation.gated);
  check_launch("activation_backward",
               launch_activation_backward({.grad = gradient.const_data_ptr(),
                                           .x = source.const_data_ptr(),
                                           .rows = layout.rows,
                                           .width = layout.width,
                                           .gated = activation.gated,
                                           .dx = dx.mutable_data_ptr()},
                                          get_format(x), activation.function, scope.context()));
  return dx;
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("activation_forward", TORCH_FN(telens::cuda::activation_forward_cuda));
  library.impl("activation_backward", TORCH_FN(telens::cuda::activation_backward_cuda));
}
