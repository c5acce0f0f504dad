// A function of tensors whose backward computes it anew, so that nothing inside is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace telens {

using TensorFunction = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// function(inputs); undefined inputs are taken. `function` may hold no tensor that wants a gradient
// but through `inputs`. draws: it takes random numbers from the default generator of the first
// input's device, which are drawn again as they were.
at::Tensor checkpointed_call(const TensorFunction& function, const std::vector<at::Tensor>& inputs,
                             bool draws);

}  // namespace telens
