// The largest magnitudes of blocks, over contiguous memory and on the calling thread. SIMD, chosen
// at run time for the processor. No LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/formats/format_id.h"
#include "core/ops/block_scale_formula.h"

namespace telens::kernels {

// maxima[b] = max |x[i]| of the elements b * block <= i < (b + 1) * block, of which the last block
// may have fewer; 0 where a block has no number.
void block_maxima(FormatId input, const void* x, std::size_t size, std::size_t block,
                  NanInMaximum nan, float* maxima);

// maxima[i] = max(maxima[i], |x[i]|): called for one row after another it gives the largest
// magnitudes of columns.
void update_column_maxima(FormatId input, const void* x, std::size_t size, NanInMaximum nan,
                          float* maxima);

}  // namespace telens::kernels
