// The SIMD kernel used by `accumulate_central_moments`: contiguous memory, on the calling thread,
// with instructions chosen at run time. No LibTorch.
#pragma once

#include <cstddef>

#include "core/formats/format_id.h"
#include "core/ops/statistics_layout.h"

namespace telens::kernels {

// Merges the moments of x, `size` elements of the format `input` (bf16, fp16, fp32), into
// `moments`, one chunk after the other.
void add_central_moments(FormatId input, const void* x, std::size_t size, CentralMoments& moments);

}  // namespace telens::kernels
