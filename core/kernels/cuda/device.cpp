#include "core/kernels/cuda/device.h"

#include <torch/library.h>

#include <array>
#include <mutex>
#include <string>

#include "core/base/error.h"
#include "core/ops/device.h"

namespace telens::cuda {
namespace {

// Ampere: the first with instructions for BF16.
constexpr int kLeastMajor = 8;

// Properties of a device, queried once.
struct DeviceProperties {
  std::once_flag asked;
  int multiprocessors = 0;
  std::string refusal;  // empty if the device is supported
};

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  check_launch("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&value, name, device));
  return value;
}

void ask(int device, DeviceProperties& properties) {
  properties.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, device);
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device);
  int driver = 0;
  check_launch("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
  if (major < kLeastMajor) {
    properties.refusal = fmt::format(
        "cuda:{} has compute capability {}.{}; TELens' CUDA kernels need 8.0 (Ampere) or newer; "
        "train on the CPU, or on another card",
        device, major, minor);
  } else if (driver / 1000 < CUDART_VERSION / 1000) {
    properties.refusal = fmt::format(
        "the driver of cuda:{} supports CUDA {}.{}, and this build needs CUDA {}.{}; install a "
        "newer driver",
        device, driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
        CUDART_VERSION % 1000 / 10);
  }
}

const DeviceProperties& get_properties(int device) {
  static std::array<DeviceProperties, kMaxDevices> all;
  DeviceProperties& properties = all.at(static_cast<std::size_t>(device));
  std::call_once(properties.asked, [&] { ask(device, properties); });
  return properties;
}

}  // namespace

DeviceScope::DeviceScope(std::string_view operation, const at::Tensor& tensor)
    : guard_(tensor.device()) {
  const DeviceProperties& properties = get_properties(tensor.device().index());
  if (!properties.refusal.empty()) raise<UsageError>("{}: {}", operation, properties.refusal);
  context_ = {c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream(),
              properties.multiprocessors, tensor.device().index(), ops::current_gate()};
}

void check_launch(std::string_view operation, cudaError_t error) {
  if (error == cudaSuccess) return;
  raise(
      "{}: CUDA reports {} ({}); an earlier kernel may be the cause: run again with "
      "CUDA_LAUNCH_BLOCKING=1 to see which",
      operation, cudaGetErrorName(error), cudaGetErrorString(error));
}

at::Tensor for_packs(const at::Tensor& tensor) {
  constexpr std::uintptr_t kPackBytes = 16;
  const at::Tensor contiguous = tensor.contiguous();
  return is_aligned(contiguous.const_data_ptr(), kPackBytes) ? contiguous : contiguous.clone();
}

void check_same_device(std::string_view operation, std::initializer_list<at::Tensor> tensors) {
  const at::Device device = tensors.begin()->device();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.device() != device) {
      raise<ShapeError>("{}: one operand is on {} and another on {}; move one of them", operation,
                        device.str(), tensor.device().str());
    }
  }
}

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
