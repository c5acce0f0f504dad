// A function of tensors whose backward recomputes it, so that no intermediates are saved.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace telens {

using TensorFunction = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// Returns function(inputs). Inputs may be undefined. `function` must not capture tensors that
// require gradients. draws: it uses random numbers from the default generator of the first input's
// device; the recomputation draws the same numbers.
at::Tensor checkpointed_call(const TensorFunction& function, const std::vector<at::Tensor>& inputs,
                             bool draws);

}  // namespace telens
