// The SIMD part of the activation kernels: plain memory, a range of elements a call.
#pragma once

#include <cstdint>

#include "core/formats/format_id.h"
#include "core/ops/activation_layout.h"

namespace telens {

// Contiguous elements of one of BF16, FP16 and FP32. A plain activation is `length` elements; a
// gated one a row of 2 * length, whose first half is activated and whose second half multiplies.
struct ActivationRow {
  ops::ActivationFunction function;
  bool gated;
  FormatId format;
  std::int64_t length;
};

void activate_row(const ActivationRow& row, const void* x, void* y);

// grad: `length` elements; dx: as x.
void activate_row_backward(const ActivationRow& row, const void* grad, const void* x, void* dx);

}  // namespace telens
