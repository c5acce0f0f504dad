// A layer's GEMM, and the hook behind it.
#pragma once

#include "core/gemm/gemm.h"
#include "core/modules/layer_pass.h"
#include "core/modules/linear_operation.h"

namespace telens {

// run_gemm; then, where the plan says so, inspect_gemm. A recomputation observes nothing a second
// time.
at::Tensor run_watched_gemm(const GemmDescription& description, LinearOperation::State& state,
                            const LayerPass& pass);

}  // namespace telens
