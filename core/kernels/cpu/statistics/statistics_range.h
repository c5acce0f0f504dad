// The SIMD kernel behind `statistics`, over contiguous memory and on the calling thread. Chosen at
// run time for the processor. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// A cast, and what it does as magnitudes of the tensor's format: codes without sign grow with the
// values that they stand for, so each counter of CastSums is one integer comparison an element.
struct CastPlan {
  FormatId format = FormatId::e4m3;
  float scale = 1;
  float scale_inv = 1;
  std::uint32_t first_nonzero = 1;   // smaller ones become zero
  std::uint32_t first_overflow = 0;  // this and larger numbers lie beyond the format's range
  std::uint32_t first_clipped = 0;   // this and larger numbers are clipped
};

// The plan of casting a tensor of the format `input` (bf16, fp16, fp32) to `output` (e4m3, e5m2).
CastPlan plan_cast(FormatId input, FormatId output, float scale);

// Merges the statistics of x, `size` elements of the format `input`, into `tensor` and `casts`
// (as many as plans), chunk by chunk from the front.
void add_statistics(FormatId input, const void* x, std::size_t size,
                    std::span<const CastPlan> plans, TensorSums& tensor, std::span<CastSums> casts);

}  // namespace telens::kernels
