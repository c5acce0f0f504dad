// Dtypes of activations inside a module.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

namespace telens {

// Returns x in torch.autocast's dtype if it is enabled for x's device, else x.
inline at::Tensor to_activation_dtype(const at::Tensor& x) {
  const at::DeviceType device = x.device().type();
  if (!at::autocast::is_autocast_enabled(device)) return x;
  return x.to(at::autocast::get_autocast_dtype(device));
}

// Returns x in the dtype of sums: FP64 unchanged, everything else as FP32.
inline at::Tensor to_accumulation_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

}  // namespace telens
