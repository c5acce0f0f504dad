// The SIMD kernels behind quantize_fp8 and amax, over contiguous memory and on the calling thread.
// Chosen at run time for the processor. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats/format_id.h"

namespace telens::kernels {

// codes[i] = saturating encode of float(x[i]) * scale, its sign that of x[i] exclusive-or that of
// scale. x has `size` elements of the format `input` (bf16, fp16, fp32); `output` is e4m3 or e5m2.
// Returns the largest magnitude of x as a code of `input` (sign clear; a NaN compares above all
// numbers), 0 if size is 0.
std::uint32_t quantize_range(FormatId input, const void* x, std::size_t size, float scale,
                             FormatId output, std::uint8_t* codes);

// The same with a scale for every element, positive or NaN, and for E2M1 too, one code a byte; NaN
// becomes the largest value, positive.
void quantize_range_by_scales(FormatId input, const void* x, std::size_t size, const float* scales,
                              FormatId output, std::uint8_t* codes);

// The magnitude alone that quantize_range returns.
std::uint32_t amax_range(FormatId input, const void* x, std::size_t size);

}  // namespace telens::kernels
