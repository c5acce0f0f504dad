// Finds an operator of the library `telens` once, to call it through the dispatcher at low cost:
//   static const auto op = find_operator<at::Tensor(const at::Tensor&)>("telens::amax");
//   return op.call(x);
#pragma once

#ifdef TELENS_STABLE_ABI
#include "core/stable_abi/operators.h"
#else

#include <ATen/core/dispatch/Dispatcher.h>

namespace telens::ops {

// The handle stays valid as long as libtelens.so is loaded. Throws if the operator is unknown or
// has a different C++ signature.
template <typename Signature>
c10::TypedOperatorHandle<Signature> find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace telens::ops

#endif
