// Errors from inside a layer, told with the layer's name. What went wrong may be known far below
// it: a kernel's card, a product's workspace, LibTorch's memory.
#pragma once

#include <string>

#include "core/base/error.h"

namespace telens {

// Within a handler: throws the exception again, of the same kind, with the layer's name where the
// text lacks it. Exceptions that are neither of core nor LibTorch's are thrown again as they are.
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
