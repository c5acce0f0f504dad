// The SIMD kernel used by `statistics`: contiguous memory, on the calling thread, with instructions
// chosen at run time. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// The effects of a cast as magnitudes of the tensor's format. Unsigned codes increase with their
// values, so each counter of CastSums is one integer comparison per element.
struct CastPlan {
  FormatId format = FormatId::e4m3;
  float scale = 1;
  float scale_inv = 1;
  std::uint32_t first_nonzero = 1;   // smaller ones become zero
  std::uint32_t first_overflow = 0;  // this and larger numbers are beyond the format's range
  std::uint32_t first_clipped = 0;   // this and larger numbers are clipped
};

// Returns the plan of a cast from the format `input` (bf16, fp16, fp32) to `output` (e4m3, e5m2).
CastPlan plan_cast(FormatId input, FormatId output, float scale);

// Merges the statistics of x, `size` elements of the format `input`, into `tensor` and `casts` (one
// per plan), one chunk after the other.
void add_statistics(FormatId input, const void* x, std::size_t size,
                    std::span<const CastPlan> plans, TensorSums& tensor, std::span<CastSums> casts);

}  // namespace telens::kernels
