// Dtypes of activations inside a module.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

namespace telens {

// torch.autocast's dtype where it is on for x's device, else x's own. x itself if it has it.
inline at::Tensor to_activation_dtype(const at::Tensor& x) {
  const at::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return x;
  return x.to(at::autocast::get_autocast_dtype(device));
}

// FP64 as it is, anything else in FP32: the dtype in which activations are added up.
inline at::Tensor to_accumulation_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

}  // namespace telens
