// Checks of the tensors that a linear layer receives.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/modules/layer/linear_parallel.h"
#include "core/modules/shared/forward_context.h"

namespace telens {

// Shape, dtype and device of an activation that may not exist yet.
class ActivationMeta {
 public:
  ActivationMeta(at::IntArrayRef sizes, const at::Tensor& like) : sizes_(sizes), like_(like) {}

  at::IntArrayRef sizes() const { return sizes_; }
  std::int64_t numel() const { return c10::multiply_integers(sizes_); }
  at::ScalarType scalar_type() const { return like_.scalar_type(); }
  at::Device device() const { return like_.device(); }
  const at::Tensor& like() const { return like_; }

 private:
  at::IntArrayRef sizes_;
  const at::Tensor& like_;
};

// Throw ShapeError or UsageError that names the layer.
void check_dtypes(const std::string& layer, const ActivationMeta& input, const at::Tensor& weight);
void check_shapes(const std::string& layer, const ActivationMeta& input, const at::Tensor& weight);

// FP8 GEMMs on GPUs require features in multiples of 16; all devices check this, so that a run on
// the CPU also works on a GPU. Any number of tokens is valid: the GEMM pads them
// (core/quantization/token_padding.h).
void check_fp8_shapes(const std::string& layer, const ForwardContext& context,
                      const ActivationMeta& input, const at::Tensor& weight);

void check_tensor_parallel(const std::string& layer, const TensorParallel& tensor_parallel);

// Checks a divided sequence, the input's first dimension.
void check_sequence(const std::string& layer, const LinearParallel& parallel,
                    const ActivationMeta& input);

}  // namespace telens
