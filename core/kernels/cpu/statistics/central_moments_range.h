// The SIMD kernel behind `accumulate_central_moments`, over contiguous memory and on the calling
// thread. Chosen at run time for the processor. No LibTorch.
#pragma once

#include <cstddef>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// Merges the moments of x, `size` elements of the format `input` (bf16, fp16, fp32), into
// `moments`, chunk by chunk from the front.
void add_central_moments(FormatId input, const void* x, std::size_t size, CentralMoments& moments);

}  // namespace telens::kernels
