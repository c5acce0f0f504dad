// The SIMD kernels used by quantize_fp8 and amax: contiguous memory, on the calling thread, with
// instructions chosen at run time. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats/format_id.h"

namespace telens::kernels {

// codes[i] = saturating encode of float(x[i]) * scale. The sign is the XOR of the signs of x[i] and
// scale. x has `size` elements of the format `input` (bf16, fp16, fp32); `output` is e4m3 or e5m2.
// Returns the largest magnitude of x as a code of `input` with a clear sign bit (NaN is larger than
// all numbers), or 0 if size is 0.
std::uint32_t quantize_range(FormatId input, const void* x, std::size_t size, float scale,
                             FormatId output, std::uint8_t* codes);

// Like quantize_range, with a scale per element, positive or NaN. Also supports E2M1, one code per
// byte. NaN becomes the largest value, positive.
void quantize_range_by_scales(FormatId input, const void* x, std::size_t size, const float* scales,
                              FormatId output, std::uint8_t* codes);

// Returns the magnitude that quantize_range returns, without quantizing.
std::uint32_t amax_range(FormatId input, const void* x, std::size_t size);

}  // namespace telens::kernels
