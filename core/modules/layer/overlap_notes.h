// Notes for inspect_gemm on a GEMM that Userbuffers are set for and that is not cut.
#pragma once

#include <cstdint>
#include <optional>

#include "core/hook_points.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/modules/shared/forward_context.h"

namespace telens {

// A GEMM in a layer's forward or backward. Its notes are nullopt where nothing inspects it, or
// where the layer has not asked for that overlap.
struct NotedGemm {
  const LinearParallel& parallel;
  const ForwardContext& context;
  Gemm gemm;

  // It was to take its operand's rows from a ring; blocks of scales lie on two ranks, so values are
  // gathered before it. bytes: what this rank sends.
  std::optional<GemmOverlapNote> of_gathered_values(std::int64_t bytes) const;
  // A collective that it does not need runs beside it.
  std::optional<GemmOverlapNote> beside(std::int64_t bytes) const;
};

inline const GemmOverlapNote* or_null(const std::optional<GemmOverlapNote>& note) {
  return note ? &*note : nullptr;
}

}  // namespace telens
