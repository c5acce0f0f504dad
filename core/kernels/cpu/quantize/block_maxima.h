// Block maxima of contiguous memory, computed on the calling thread. Uses SIMD instructions chosen
// at run time for the processor. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats/format_id.h"
#include "core/ops/scale_formula.h"

namespace telens::kernels {

// maxima[b] = max |x[i]| of the elements b * block <= i < (b + 1) * block. The last block may be
// shorter. The maximum is 0 if a block has no number.
void block_maxima(FormatId input, const void* x, std::size_t size, std::size_t block,
                  NanInMaximum nan, float* maxima);

// maxima[i] = max(maxima[i], |x[i]|). Calling it for each row gives the column maxima.
void update_column_maxima(FormatId input, const void* x, std::size_t size, NanInMaximum nan,
                          float* maxima);

}  // namespace telens::kernels
