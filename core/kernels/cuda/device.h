// The first steps of every CUDA binding: makes the tensor's device current, gets its stream, and
// checks errors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <initializer_list>
#include <string_view>

#include "core/kernels/cuda/launch.cuh"

namespace telens::cuda {

// Makes the tensor's device current until the end of the scope. Throws if the card is not one of
// those for which the kernels are built, or if the driver is older than the CUDA toolkit; the error
// names both.
class DeviceScope {
 public:
  DeviceScope(std::string_view operation, const at::Tensor& tensor);

  const LaunchContext& context() const { return context_; }

 private:
  c10::cuda::CUDAGuard guard_;
  LaunchContext context_;
};

// Throws telens::Error with CUDA's name and text of the error, unless it is cudaSuccess.
void check_launch(std::string_view operation, cudaError_t error);

// Returns the tensor if it is contiguous and aligned for 16-byte loads, or such a copy.
at::Tensor for_packs(const at::Tensor& tensor);

// Throws ShapeError unless all defined tensors are on the device of the first.
void check_same_device(std::string_view operation, std::initializer_list<at::Tensor> tensors);

}  // namespace telens::cuda
