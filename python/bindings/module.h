// The parts of the extension module telens._C: each function adds one part to it.
#pragma once

#include <pybind11/pybind11.h>

namespace telens::python {

// Declares telens.Error (a RuntimeError), UsageError (also a ValueError), ShapeError, ConfigError
// and RecordError, and translates C++ exceptions of those types.
void bind_errors(pybind11::module_& module);

// Lets the errors of a backward reach Python with their own types.
void translate_backward_errors();

// Makes the functions and methods of `module` and `module.debug` raise UsageError for arguments of
// a wrong type, number or name. pybind11 would raise TypeError. Called after all parts are bound.
// A bound function needs a positional parameter unless its arguments need no conversion: pybind11
// does not retry a function with conversions if every parameter is keyword-only.
void raise_usage_errors(pybind11::module_& module);

// The C++ side of telens.pytorch.
void bind_quantized_storage(pybind11::module_& module);  // codes and scales
void bind_quantized_tensor(pybind11::module_& module);   // their class, and tensors with a payload
void bind_quantizers(pybind11::module_& module);         // named as in Transformer Engine
void bind_recipes(pybind11::module_& module);
void bind_autocast(pybind11::module_& module);  // fp8_autocast and recomputation
void bind_modules(pybind11::module_& module);   // every module of core/modules
void bind_moe_dispatcher(pybind11::module_& module);
// Lets the layers of the C++ core find the main_grad attributes of parameters
// (fuse_wgrad_accumulation).
void find_main_grads_in_attributes();

// The C++ side of telens.paddle.
void bind_foreign_tensors(pybind11::module_& module);  // tensors of another framework
void bind_foreign_module(pybind11::module_& module);   // a C++ module that computes with them

// The C++ side of telens.debug.
void bind_debug(pybind11::module_& module);        // the session API
void bind_plan(pybind11::module_& module);         // plans a configuration without a session
void bind_features(pybind11::module_& module);     // feature classes written in Python
void bind_gemm(pybind11::module_& module);         // the kernel that the newest GEMM chose
void bind_collectives(pybind11::module_& module);  // messages that divided layers have sent
void bind_userbuffers(pybind11::module_& module);  // GEMMs that overlap with communication
void bind_statistics(pybind11::module_& module);   // statistics defined or requested in Python
void bind_layer_calls(pybind11::module_& module);  // the seven calls, for self-instrumented layers

// The C++ side of telens.open_run.
void bind_run_reader(pybind11::module_& module);

}  // namespace telens::python
