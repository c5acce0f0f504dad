// Gradient accumulation inside the GEMM (fuse_wgrad_accumulation): each weight has a buffer of its
// owner's, main_grad, to which wgrad is added, and .grad stays empty.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "core/base/error.h"

namespace telens {

// FP32, BF16 or FP16, of the parameter's shape, on its device; undefined: none any more. Asked for
// in the backward. The parameter is known by its identity and not kept alive.
TELENS_EXPORT void set_main_grad(const at::Tensor& parameter, at::Tensor main_grad);

struct MainGrad {
  at::Tensor buffer;
  bool overwrite = false;  // wgrad replaces what is there
  // The code that reduces main_grad waits for a gradient of the parameter to come: zeros serve.
  bool wants_gradient = false;
};

// Second source of main_grad buffers: Python, where main_grad is an attribute of the Parameter.
class MainGradSource {
 public:
  virtual ~MainGradSource() = default;
  // With an undefined buffer for a parameter that it knows nothing of.
  virtual MainGrad find(const at::Tensor& parameter) = 0;
  // wgrad has been added to the buffer that find() gave.
  virtual void added(const at::Tensor& parameter) = 0;
};
TELENS_EXPORT void set_main_grad_source(std::unique_ptr<MainGradSource> source);

// True where torch's DistributedDataParallel waits for the parameter's .grad in the backward.
bool is_reduced_by_torch(const at::Tensor& parameter);

// For layers: the buffer for a weight's gradient. Throws UsageError naming the layer where there is
// none, where it does not fit, or where torch's DistributedDataParallel waits for .grad.
MainGrad get_main_grad(const at::Tensor& parameter, const std::string& layer);

// After the addition; what autograd gets as the parameter's gradient: zeros or nothing.
at::Tensor gradient_beside(const MainGrad& target, const at::Tensor& parameter);

}  // namespace telens
