// For tensors that a process keeps, independent of the mode in which they were first needed.
#pragma once

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace telens::ops {

// During its lifetime, new tensors are plain tensors with values, in any mode of this thread:
// FakeTensorMode, a functional transform, inference.
class PlainTensors {
 private:
  c10::InferenceMode normal_{false};
  c10::impl::ExcludeDispatchKeyGuard no_modes_{c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::PreDispatch,
       c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode, c10::DispatchKey::Functionalize})};
};

}  // namespace telens::ops
