// FP4 with blocks scaled to 4 or to 6, whichever leaves the smaller error: the operator
// quantize_four_over_six. core/ops/four_over_six_formula.h has the definition.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/ops/block_quantize.h"
#include "core/ops/four_over_six_formula.h"

namespace telens::ops {

struct FourOverSixOptions {
  bool two_dimensional = false;  // 16x16 elements share a scale and the choice
  FourOverSix choice = {};
  // Options shared with quantizing to 6 only (block_quantize.h).
  at::Tensor amaxes = {};
  bool row_scaled = false;
};

// x, the orientations, codes and scales are the same as for packed FP4 (block_quantize.h). Rounds
// to nearest. A NaN becomes +6, and the scale of its block becomes NaN. In squares, both
// orientations hold the same values.
TELENS_EXPORT BlockCodesPair quantize_four_over_six(const at::Tensor& x,
                                                    const FourOverSixOptions& options,
                                                    const Orientations& orientations);

// Throws UsageError for a scale that is neither 256 nor 448.
FourOverSix check_four_over_six(double largest_scale, bool squared_error);

}  // namespace telens::ops
