#include "core/ops/backends.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorOptions.h>

namespace telens::ops {

bool runs_on(const c10::Device& device) {
  // Any operator works as a probe, because a backend registers all of them.
  static const auto gemm = c10::Dispatcher::singleton().findSchemaOrThrow("telens::gemm", "");
  return gemm.hasKernelForDispatchKey(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

void check_has_kernels(const c10::Device& device, const std::string& layer) {
  // A CUDA-enabled LibTorch is not enough: this build may lack our CUDA kernels.
  if (runs_on(device)) return;
  raise<UsageError>(
      "{}: its tensors are on {}, but this build of TELens does not have kernels for it; build "
      "with CUDA (make build CUDA=ON), or move the model to the CPU",
      layer, device.str());
}

}  // namespace telens::ops
