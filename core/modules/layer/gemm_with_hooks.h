// A GEMM of a layer and the hooks after it: inspect_gemm, then the hooks of its output.
#pragma once

#include <cstdint>
#include <optional>

#include "core/gemm/gemm.h"
#include "core/hook_points.h"
#include "core/modules/layer/gemm_operands.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/shared/forward_context.h"

namespace telens {

// First half of gemm_with_hooks(): run_gemm and inspect_gemm.
at::Tensor gemm_with_inspection(GemmLayer& layer, const ForwardContext& context,
                                const GemmDescription& description,
                                const GemmOverlapNote* overlap = nullptr);

// Returns true if inspect_gemm will be called.
bool is_inspected(const ForwardContext& context, Gemm gemm);

// Second half of gemm_with_hooks(): the hooks of a GEMM's output. For a product summed over ranks,
// pass the sum. `bias`: the bias that fprop added; may be undefined.
at::Tensor run_output_hooks(GemmLayer& layer, const ForwardContext& context, Gemm gemm,
                            const at::Tensor& bias, at::Tensor output);

// Returns true if the plan calls output hooks.
bool has_output_hooks(const ForwardContext& context, Gemm gemm);

// Calls run_gemm, then, according to the plan: inspect_gemm, modify_tensor on the output and
// inspect_tensor on the result. Output hooks are not called for a product that is added to
// accumulate_into. A recomputed fprop is not inspected again.
at::Tensor gemm_with_hooks(GemmLayer& layer, const ForwardContext& context,
                           const GemmDescription& description,
                           const GemmOverlapNote* overlap = nullptr);

// Rounds an output or an input gradient to FP8 values and attaches the codes (quantized_payload.h).
// output: [rows, columns]; the result has shape `sizes`. `trains`: also quantizes columnwise for
// block formats.
at::Tensor quantized_output(const at::Tensor& output, at::IntArrayRef sizes,
                            const Quantizer& quantizer, bool trains);

// Creates the overlap notes of a GEMM that was not split. Notes are nullopt if nothing inspects the
// GEMM or if the layer does not request that overlap.
struct NotedGemm {
  const LinearParallel& parallel;
  const ForwardContext& context;
  Gemm gemm;

  // The note of a GEMM whose operand was gathered as values before it, because scale blocks span
  // two ranks. bytes: sent by this rank.
  std::optional<GemmOverlapNote> of_gathered_values(std::int64_t bytes) const;
  // The note of a GEMM that runs concurrently with an independent collective.
  std::optional<GemmOverlapNote> beside(std::int64_t bytes) const;
};

inline const GemmOverlapNote* or_null(const std::optional<GemmOverlapNote>& note) {
  return note ? &*note : nullptr;
}

}  // namespace telens
