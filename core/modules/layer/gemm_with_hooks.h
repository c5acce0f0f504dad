// A layer's GEMM and the hooks behind it: inspect_gemm, then the hooks of its output.
#pragma once

#include "core/gemm/gemm.h"
#include "core/modules/layer/gemm_operands.h"

namespace telens {

// The first half of gemm_with_hooks: run_gemm and inspect_gemm.
at::Tensor gemm_with_inspection(GemmLayer& layer, const ForwardContext& context,
                                const GemmDescription& description,
                                const GemmOverlapNote* overlap = nullptr);

// True if inspect_gemm will be called for it.
bool is_inspected(const ForwardContext& context, Gemm gemm);

// The second half: the hooks of a GEMM's output. Of a product that is summed over ranks they see
// the sum. `bias`: what fprop has added; may be undefined.
at::Tensor run_output_hooks(GemmLayer& layer, const ForwardContext& context, Gemm gemm,
                            const at::Tensor& bias, at::Tensor output);

// True if the plan wants any.
bool has_output_hooks(const ForwardContext& context, Gemm gemm);

// run_gemm; then, where the plan says so: inspect_gemm, modify_tensor on the output and
// inspect_tensor on the result. A product that was added to accumulate_into passes no output hooks.
// A recomputed fprop is observed no second time.
at::Tensor gemm_with_hooks(GemmLayer& layer, const ForwardContext& context,
                           const GemmDescription& description,
                           const GemmOverlapNote* overlap = nullptr);

// An output, or the gradient of an input, as the values of its codes, which it carries to the layer
// that takes it. output: [rows, columns]; returns it in `sizes`. `trains`: the next layer may want
// the codes of both orientations.
at::Tensor quantized_output(const at::Tensor& output, at::IntArrayRef sizes,
                            const Quantizer& quantizer, bool trains);

}  // namespace telens
