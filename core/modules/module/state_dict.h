// A module's parameters, buffers and extra states by full name, like Python's state_dict.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <string>

#include "core/base/error.h"

namespace telens {

// Names are "layers.0.self_attention.proj.weight", "layers.0.self_attention.proj._extra_state", ...
// The tensors are the module's, detached; extra states are bytes on the CPU.
using StateDict = std::map<std::string, at::Tensor>;

TELENS_EXPORT StateDict state_dict(const torch::nn::Module& module);

// Copies values into the module's tensors. Throws UsageError for missing and unexpected names,
// ShapeError for other shapes; nothing has been copied then.
TELENS_EXPORT void load_state_dict(torch::nn::Module& module, const StateDict& state);

}  // namespace telens
