// The SIMD part of the activation kernels: raw memory, one range of elements per call.
#pragma once

#include <cstdint>

#include "core/formats/format_id.h"
#include "core/ops/activation_formula.h"

namespace telens {

// A contiguous row of BF16, FP16 or FP32 elements. A plain activation has `length` elements. A
// gated one has 2 * length: the first half is activated and multiplied by the second half.
struct ActivationRow {
  ops::ActivationFunction function;
  bool gated;
  FormatId format;
  std::int64_t length;
};

void activate_row(const ActivationRow& row, const void* x, void* y);

// `grad` has `length` elements; `dx` has the shape of x.
void activate_row_backward(const ActivationRow& row, const void* grad, const void* x, void* dx);

}  // namespace telens
