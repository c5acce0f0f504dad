// For tensors that a process keeps, under whatever mode they were first needed.
#pragma once

#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace telens::ops {

// While it lives, what is made is a plain tensor with values, whatever modes this thread is in:
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
