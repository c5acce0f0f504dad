// Decoding of a per-tensor scaled operand for the CPU's GEMM.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/base/error.h"
#include "core/formats/format_id.h"

namespace telens::kernels {

// Returns the exact values of a matrix of FP8 codes [rows, K], without its scale, as a row-major
// tensor. Codes that are a transposed view are transposed. Strides are kept if a dimension of such
// a view is not a multiple of 16, or for dtypes other than BF16 and FP32, which no GEMM requests.
TELENS_EXPORT at::Tensor decode_row_by_row(const at::Tensor& codes, FormatId format,
                                           at::ScalarType dtype);

}  // namespace telens::kernels
