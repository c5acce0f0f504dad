#include "core/quantization/amax_window.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/quantization/recipe.h"

namespace telens {
namespace {

std::int64_t slots_of_gemm(bool backward) { return backward ? kBackwardRoles : kForwardRoles; }

AmaxWindow make_window(std::int64_t length, std::int64_t slots, const at::Device& device) {
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  return {at::zeros({length, slots}, options), at::ones({slots}, options)};
}

// The newest rows of a history in one of another length.
at::Tensor resized_history(const at::Tensor& history, std::int64_t length) {
  at::Tensor resized = at::zeros({length, history.size(1)}, history.options());
  const std::int64_t kept = std::min(length, history.size(0));
  resized.narrow(0, 0, kept).copy_(history.narrow(0, 0, kept));
  return resized;
}

}  // namespace

void ModuleWindows::prepare(std::int64_t length, const at::Device& device) {
  for (const bool backward : {false, true}) {
    AmaxWindow& window = joined_[backward ? 1 : 0];
    if (!window.defined()) {
      window = make_window(length, gemms_ * slots_of_gemm(backward), device);
    } else if (window.amax_history.size(0) != length) {
      window.amax_history = resized_history(window.amax_history, length);
    }
    if (window.scale.device() != device) {
      window.amax_history = window.amax_history.to(device);
      window.scale = window.scale.to(device);
    }
  }
}

void ModuleWindows::view(bool backward, std::int64_t gemm, AmaxWindow& window) const {
  const AmaxWindow& all = joined(backward);
  const std::int64_t slots = slots_of_gemm(backward);
  window.amax_history = all.amax_history.narrow(1, gemm * slots, slots);
  window.scale = all.scale.narrow(0, gemm * slots, slots);
}

}  // namespace telens
