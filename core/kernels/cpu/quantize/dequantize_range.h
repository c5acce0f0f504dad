// The SIMD kernel behind dequantize_fp8 and decode_fp8, over contiguous memory and on the calling
// thread. Chosen at run time for the processor. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats/format_id.h"

namespace telens::kernels {

// values[i] = float(codes[i]) * scale_inv, rounded to FP32 and then to `output` (bf16, fp16, fp32),
// not saturating; `input` is e4m3 or e5m2. The sign is that of the code exclusive-or that of
// scale_inv, also of NaN, which is quiet and without payload.
void dequantize_range(FormatId input, const std::uint8_t* codes, std::size_t size, float scale_inv,
                      FormatId output, void* values);

// The same with a scale for every element, positive or NaN (quiet, without payload), for E2M1 too,
// whose codes come one a byte.
void dequantize_range_by_scales(FormatId input, const std::uint8_t* codes, std::size_t size,
                                const float* scales, FormatId output, void* values);

// values[i] = the value of codes[i], exact. `output` is bf16 or fp32.
void decode_range(FormatId input, const std::uint8_t* codes, std::size_t size, FormatId output,
                  void* values);

}  // namespace telens::kernels
