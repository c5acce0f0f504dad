// How an exception leaves a backward. Autograd's engine hands the C++ exception itself to a caller
// in C++; of all types but its own, a caller in Python would see a RuntimeError.
#pragma once

#include "core/base/error.h"

namespace telens {

// Called within a handler: throws what is to leave the backward in place of the exception that is
// being handled.
using BackwardErrorTranslator = void (*)();

// For the module that another language has loaded; once, before any backward runs.
TELENS_EXPORT void set_backward_error_translator(BackwardErrorTranslator translator);

// Within a handler: what the translator throws; without one, the exception itself.
[[noreturn]] TELENS_EXPORT void rethrow_from_backward();

template <typename Work>
auto in_backward(const Work& work) {
  try {
    return work();
  } catch (...) {
    rethrow_from_backward();
  }
}

}  // namespace telens
