// Error statistics of hypothetical casts in blocks: the operator
// `telens::accumulate_what_if_statistics`, called through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "core/base/error.h"
#include "core/formats/format_id.h"
#include "core/formats/scheme.h"

namespace telens::ops {

// A cast by the quantizer of core/ops/block_quantize.h with its default options.
struct WhatIfCast {
  FormatId format;          // e4m3 or e5m2; packed: e2m1
  ScalingMode mode;         // any with blocks
  bool squares = false;     // blocks are squares, as those of block_2d always are
  bool columnwise = false;  // blocks down the columns

  bool operator==(const WhatIfCast&) const = default;
};

// One read of x for all casts, and one of its largest magnitudes for those that need them first: of
// the tensor (packed FP4), down the columns, or of squares. x: BF16, FP16 or FP32 [rows, columns],
// any strides. accumulators: one a cast, int64 [kCastSumsWords] (core/ops/statistics_layout.h),
// merged into. The words are those that quantizing x and accumulate_block_cast_statistics give
// (errors of a matrix of one row or column may be added in another order).
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
