// A module's parameters, buffers and extra states by their full names, as Python's state_dict.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>

#include "core/base/error.h"

namespace telens {

// "layers.0.self_attention.proj.weight", "layers.0.self_attention.proj._extra_state", ... The
// tensors are the module's own, detached; extra states are bytes on the CPU.
using StateDict = std::map<std::string, at::Tensor>;

TELENS_EXPORT StateDict state_dict(const torch::nn::Module& module);

// Copies values into the module's tensors. Throws UsageError naming what is missing or left over,
// ShapeError on another shape; then nothing has been copied.
TELENS_EXPORT void load_state_dict(torch::nn::Module& module, const StateDict& state);

}  // namespace telens
