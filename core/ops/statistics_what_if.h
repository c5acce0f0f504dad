// Error statistics of hypothetical casts in blocks: the operator
// `telens::accumulate_what_if_statistics`, called through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/base/error.h"
#include "core/ops/what_if_cast_layout.h"

namespace telens::ops {

// Reads x once for all casts, and once for its largest magnitudes if a cast needs them first: of
// the tensor (packed FP4), down the columns, or of squares. x: BF16, FP16 or FP32 [rows, columns],
// any strides. accumulators: one per cast, int64 [kCastSumsWords] (core/ops/statistics_layout.h),
// merged into. The words are the same as from quantizing x and calling
// accumulate_block_cast_statistics (errors of a matrix with one row or column may be added in a
// different order).
TELENS_EXPORT void accumulate_what_if_statistics(const at::Tensor& x,
                                                 std::span<const WhatIfCast> casts,
                                                 at::TensorList accumulators);

// The arguments of the operator.
struct WhatIfArguments {
  at::IntArrayRef formats, modes, squares, columnwise;
};

// The checks of every backend's kernel; returns the casts.
std::vector<WhatIfCast> check_what_if_statistics(const at::Tensor& x, const WhatIfArguments& casts,
                                                 at::TensorList accumulators);

}  // namespace telens::ops
