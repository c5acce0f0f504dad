// The begin of every CUDA binding: the tensor's device made current, its stream, and errors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <initializer_list>
#include <string_view>

#include "core/kernels/cuda/launch.cuh"

namespace telens::cuda {

// Makes the tensor's device the current one until it goes out of scope. Refuses cards that the
// kernels are not built for, and drivers older than the CUDA toolkit, by name.
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

// Contiguous, and aligned for loads of 16 bytes: a copy where it is not.
at::Tensor for_packs(const at::Tensor& tensor);

// Throws ShapeError unless all tensors (undefined ones aside) are on the device of the first.
void check_same_device(std::string_view operation, std::initializer_list<at::Tensor> tensors);

}  // namespace telens::cuda
