// The SIMD kernels that find maxima, quantize and dequantize: contiguous memory, on the calling
// thread, with instructions chosen at run time. No LibTorch. Each section names its source.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats/format_id.h"
#include "core/ops/scale_formula.h"

namespace telens::kernels {

// ---- quantize_fp8 and amax (quantize_range.cpp)

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

// ---- dequantize_fp8 and decode_fp8 (dequantize_range.cpp)

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

// ---- decode_row_by_row (gemm/decode_columns.cpp)

// A row-major matrix in memory.
struct CodeMatrix {
  const std::uint8_t* data;
  std::size_t rows;
  std::size_t columns;
};

// Rows and columns of the matrix are multiples of kTile.
inline constexpr std::size_t kTile = 16;

// values[column - begin][row] = the value of codes[row][column], exact, for the columns in [begin,
// end); `begin` and `end` are multiples of kTile. `input` is e4m3 or e5m2, `output` is bf16 or
// fp32. Runs on the calling thread, with the best instructions of the processor.
void decode_columns(FormatId input, const CodeMatrix& codes, std::size_t begin, std::size_t end,
                    FormatId output, void* values);

// ---- Block maxima (block_maxima.cpp)

// maxima[b] = max |x[i]| of the elements b * block <= i < (b + 1) * block. The last block may be
// shorter. The maximum is 0 if a block has no number.
void block_maxima(FormatId input, const void* x, std::size_t size, std::size_t block,
                  NanInMaximum nan, float* maxima);

// maxima[i] = max(maxima[i], |x[i]|). Calling it for each row gives the column maxima.
void update_column_maxima(FormatId input, const void* x, std::size_t size, NanInMaximum nan,
                          float* maxima);

}  // namespace telens::kernels
