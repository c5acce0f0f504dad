// The SIMD kernel behind `accumulate_block_cast_statistics`, over contiguous memory and on the
// calling thread. Chosen at run time for the processor. No LibTorch.
#pragma once

#include <cstddef>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// Elements before and after a cast in blocks. All arrays have `size` elements.
struct BlockCastElements {
  FormatId input;        // bf16, fp16 or fp32: of x
  const void* x;         // before
  const float* decoded;  // after: what the codes stand for
  const float* scales;   // scales of each element's block: 0 or more, or NaN
  std::size_t size;
};

// Merges what the cast to `element` (e4m3, e5m2, e2m1) did to them; scale_inv_min and _max are left
// alone.
void add_block_cast(const BlockCastElements& elements, FormatId element, CastSums& sums);

}  // namespace telens::kernels
