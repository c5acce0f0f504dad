// The SIMD kernel behind `accumulate_what_if_statistics`, over contiguous memory and on the calling
// thread. Chosen at run time for the processor. No LibTorch.
#pragma once

#include <cstddef>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// Elements that are not cast. For each block the factor of its elements before they are
// rounded (0 or more, or NaN, and NaN only where the scale is) and after (its scale_inv).
struct UncastElements {
  FormatId input;  // bf16, fp16 or fp32: of x
  const void* x;
  std::size_t size;
  const float* factors;
  const float* scales;
  // Consecutive elements that have one of them, divisible by 16; 1: each element has its own.
  std::size_t block;
};

// Merges what the cast to `element` (e4m3, e5m2, e2m1) would do to them; scale_inv_min and _max are
// left alone. The bits are those of encoding, decoding and add_block_cast
// (core/kernels/cpu/statistics/statistics_block_cast_range.h).
void add_what_if_cast(const UncastElements& elements, FormatId element, CastSums& sums);

}  // namespace telens::kernels
