// A layer's GEMM and the hooks behind it: inspect_gemm, then the hooks of its output.
#pragma once

#include "core/gemm/gemm.h"
#include "core/modules/gemm_operands.h"

namespace telens {

// run_gemm; then, where the plan says so: inspect_gemm, modify_tensor on the output and
// inspect_tensor on the result. A product that was added to accumulate_into passes no output hooks.
// A recomputed fprop is observed no second time.
at::Tensor gemm_with_hooks(GemmLayer& layer, const ForwardContext& context,
                           const GemmDescription& description);

}  // namespace telens
