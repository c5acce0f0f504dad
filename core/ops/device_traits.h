// How devices differ for what is computed by LibTorch's own operators.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

namespace telens::ops {

// True if reading its values waits for no device.
inline bool is_on_host(const at::Tensor& tensor) { return tensor.is_cpu(); }

// True if scaled_dot_product_attention takes an additive mask in FP32 beside tensors of 16 bits.
// The memory-efficient kernel of CUDA refuses one.
inline bool takes_wider_mask(const at::Tensor& query) { return query.is_cpu(); }

// True if every kernel of scaled_dot_product_attention that LibTorch would choose gives the same
// bits in each run. On CUDA flash and the memory-efficient one add up gradients in any order unless
// torch.use_deterministic_algorithms(True) asks for a fixed one; cuDNN is then not chosen.
inline bool attention_is_deterministic(const at::Tensor& query) {
  const at::Context& context = at::globalContext();
  return query.is_cpu() ||
         (context.deterministicAlgorithms() && !context.deterministicAlgorithmsWarnOnly());
}

// True if flash takes tensors in FP32, and is the one fast kernel. On CUDA it takes 16 bits alone,
// beside cuDNN's and the memory-efficient kernel.
inline bool has_flash_alone(const at::Tensor& query) { return query.is_cpu(); }

}  // namespace telens::ops
