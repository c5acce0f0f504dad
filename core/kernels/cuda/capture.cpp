// `is_capturing` on CUDA.
#include <torch/library.h>

#include "core/kernels/cuda/device.h"

namespace telens::cuda {
namespace {

bool is_capturing_cuda(const at::Tensor& x) {
  const DeviceScope scope("is_capturing", x);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_launch("is_capturing", cudaStreamIsCapturing(scope.context().stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace
}  // namespace telens::cuda

TORCH_LIBRARY_IMPL(telens, CUDA, library) {
  library.impl("is_capturing", TORCH_FN(telens::cuda::is_capturing_cuda));
}
