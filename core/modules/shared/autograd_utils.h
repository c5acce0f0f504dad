// Helpers of autograd functions: gradient requests, and errors that name the layer.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <string>
#include <string_view>

#include "core/base/error.h"

namespace telens {

// Returns true if autograd records a call with this tensor. The tensor may be undefined.
inline bool wants_gradient(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
}

// Call first in a backward. The backward functions of modules are not differentiable: a second
// derivative is an error instead of a wrong number.
inline void check_no_second_derivative(std::string_view layer) {
  if (at::GradMode::is_enabled()) {
    raise<UsageError>(
        "{}: a second derivative (create_graph=True) was asked of a module whose backward is not "
        "differentiable; use torch.nn's where you need it",
        layer);
  }
}

// Called in a catch block: throws the exception that leaves the backward instead of the current
// one. Autograd's engine passes C++ exceptions on to C++ callers; Python callers would see all
// types but torch's as RuntimeError.
using BackwardErrorTranslator = void (*)();

// Set once by a language binding, before any backward runs.
TELENS_EXPORT void set_backward_error_translator(BackwardErrorTranslator translator);

// Call in a catch block: throws the translator's exception, or the current exception if no
// translator is set.
[[noreturn]] TELENS_EXPORT void rethrow_from_backward();

template <typename Work>
auto translating_errors(const Work& work) {
  try {
    return work();
  } catch (...) {
    rethrow_from_backward();
  }
}

// Call in a catch block: rethrows the exception with the same type and the layer's name, unless the
// text already contains it. Rethrows other libraries' exceptions unchanged. Errors may originate
// far below the layer: in a kernel, a GEMM's workspace or LibTorch's allocator.
[[noreturn]] TELENS_EXPORT void rethrow_naming(const std::string& layer);

template <typename Work>
auto naming_layer(const std::string& layer, const Work& work) {
  try {
    return work();
  } catch (...) {
    rethrow_naming(layer);
  }
}

}  // namespace telens
