// The SIMD kernel used by `accumulate_block_cast_statistics`: contiguous memory, on the calling
// thread, with instructions chosen at run time. No LibTorch.
#pragma once

#include <cstddef>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// Elements before and after a block cast. All arrays have `size` elements.
struct BlockCastElements {
  FormatId input;        // format of x: bf16, fp16 or fp32
  const void* x;         // before
  const float* decoded;  // the values after the cast
  const float* scales;   // each element's block scale: at least 0, or NaN
  std::size_t size;
};

// Merges the errors of the cast to `element` (e4m3, e5m2, e2m1) into `sums`. Does not change
// scale_inv_min and scale_inv_max.
void add_block_cast(const BlockCastElements& elements, FormatId element, CastSums& sums);

}  // namespace telens::kernels
