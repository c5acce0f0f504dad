#include "core/modules/shared/parameter_options.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/DefaultDtype.h>

#include "core/distributed/warn_once.h"
#include "core/ops/device.h"

namespace telens {
namespace {

// Transformer Engine's default: normal with mean 0 and this standard deviation.
constexpr double kInitialDeviation = 0.023;

at::TensorOptions get_placement(const ParameterOptions& options) {
  const at::ScalarType dtype =
      options.params_dtype.value_or(c10::get_default_dtype_as_scalartype());
  return at::TensorOptions().dtype(dtype).device(
      options.device.value_or(default_device(at::hasCUDA())));
}

}  // namespace

at::Device default_device(bool has_gpu) {
  if (!has_gpu) return at::kCPU;
  if (ops::runs_on(at::kCUDA)) return at::kCUDA;
  warn_once(
      "this machine has a GPU, but this build of telens does not have kernels for it: modules "
      "without `device` are created on the CPU. Build with CUDA=ON (docs/gpu.md), or pass "
      "device=\"cpu\"");
  return at::kCPU;
}

void ParameterOptions::resolve_tensor_parallel_size(const char* module) {
  if (tp_group) tp_size = size_of(*tp_group);
  if (tp_size < 1) {
    raise<UsageError>("{}: tp_size is {}; expected at least 1, the number of ranks", module,
                      tp_size);
  }
}

at::Tensor ParameterOptions::make_weight(at::IntArrayRef sizes) const {
  at::Tensor weight = at::empty(sizes, get_placement(*this));
  const at::NoGradGuard no_grad;
  if (init_method) {
    init_method(weight);
  } else {
    weight.normal_(0, kInitialDeviation);
  }
  return weight;
}

at::Tensor ParameterOptions::make_constant(at::IntArrayRef sizes, double value) const {
  return at::full(sizes, value, get_placement(*this));
}

}  // namespace telens
