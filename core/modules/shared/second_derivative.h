// The backward functions of our modules are not differentiable: asking for it is an error, not a
// wrong number.
#pragma once

#include <ATen/core/grad_mode.h>

#include <string_view>

#include "core/base/error.h"

namespace telens {

// To be called first in a backward.
inline void refuse_second_derivative(std::string_view layer) {
  if (at::GradMode::is_enabled()) {
    raise<UsageError>(
        "{}: a second derivative (create_graph=True) was asked of a module whose backward is not "
        "differentiable; use torch.nn's where you need it",
        layer);
  }
}

}  // namespace telens
