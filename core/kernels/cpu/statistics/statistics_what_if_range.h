// The SIMD kernel used by `accumulate_what_if_statistics`: contiguous memory, on the calling
// thread, with instructions chosen at run time. No LibTorch.
#pragma once

#include <cstddef>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// Elements before a cast. Each block has a factor that multiplies its elements before rounding (at
// least 0, or NaN if and only if the scale is NaN), and a factor after rounding (its scale_inv).
struct UncastElements {
  FormatId input;  // format of x: bf16, fp16 or fp32
  const void* x;
  std::size_t size;
  const float* factors;
  const float* scales;
  // Consecutive elements that share a factor, divisible by 16; 1 if each element has its own.
  std::size_t block;
};

// Merges the errors that the cast to `element` (e4m3, e5m2, e2m1) would cause into `sums`. Does not
// change scale_inv_min and scale_inv_max. Bit-identical to encoding, decoding and add_block_cast
// (core/kernels/cpu/statistics/statistics_block_cast_range.h).
void add_what_if_cast(const UncastElements& elements, FormatId element, CastSums& sums);

}  // namespace telens::kernels
