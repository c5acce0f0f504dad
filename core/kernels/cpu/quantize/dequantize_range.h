// The SIMD kernels used by dequantize_fp8 and decode_fp8: contiguous memory, on the calling thread,
// with instructions chosen at run time. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats/format_id.h"

namespace telens::kernels {

// values[i] = float(codes[i]) * scale_inv, rounded to FP32 and then to `output` (bf16, fp16, fp32),
// not saturating; `input` is e4m3 or e5m2. The sign is the XOR of the signs of code and scale_inv,
// also for NaN, which is quiet and has no payload.
void dequantize_range(FormatId input, const std::uint8_t* codes, std::size_t size, float scale_inv,
                      FormatId output, void* values);

// Like dequantize_range, with a scale per element, positive or NaN (quiet, without payload). Also
// supports E2M1, with one code per byte.
void dequantize_range_by_scales(FormatId input, const std::uint8_t* codes, std::size_t size,
                                const float* scales, FormatId output, void* values);

// values[i] = the value of codes[i], exact. `output` is bf16 or fp32.
void decode_range(FormatId input, const std::uint8_t* codes, std::size_t size, FormatId output,
                  void* values);

}  // namespace telens::kernels
