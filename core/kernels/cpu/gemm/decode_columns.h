// The SIMD kernel used by decode_row_by_row: decodes and transposes FP8 codes. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats/format_id.h"

namespace telens::kernels {

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

}  // namespace telens::kernels
