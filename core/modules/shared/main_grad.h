// Gradient accumulation in the GEMM (fuse_wgrad_accumulation): wgrad is added to a buffer that the
// weight's owner provides, main_grad, and .grad stays empty.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "core/base/error.h"

namespace telens {

// Sets the main_grad of a parameter: FP32, BF16 or FP16, with the parameter's shape and device.
// Removes it if undefined. Read in the backward. The parameter is identified by its TensorImpl and
// not kept alive.
TELENS_EXPORT void set_main_grad(const at::Tensor& parameter, at::Tensor main_grad);

struct MainGrad {
  at::Tensor buffer;
  bool overwrite = false;  // wgrad replaces the buffer's values
  // The code that reduces main_grad waits for a gradient of the parameter; zeros are sufficient.
  bool wants_gradient = false;
};

// A second source of main_grad buffers: Python, where main_grad is an attribute of the Parameter.
class MainGradSource {
 public:
  virtual ~MainGradSource() = default;
  // Returns an undefined buffer for an unknown parameter.
  virtual MainGrad find(const at::Tensor& parameter) = 0;
  // Called after wgrad was added to the buffer of find().
  virtual void added(const at::Tensor& parameter) = 0;
};
TELENS_EXPORT void set_main_grad_source(std::unique_ptr<MainGradSource> source);

// Returns true if torch's DistributedDataParallel reduces the parameter's .grad in the backward.
bool is_reduced_by_torch(const at::Tensor& parameter);

// Returns the buffer for a weight's gradient. Throws UsageError naming the layer if there is none,
// if it does not match, or if DistributedDataParallel reduces .grad.
MainGrad get_main_grad(const at::Tensor& parameter, const std::string& layer);

// Call after the addition. Returns the gradient for autograd: zeros or undefined.
at::Tensor placeholder_gradient(const MainGrad& target, const at::Tensor& parameter);

}  // namespace telens
