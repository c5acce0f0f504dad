// How the CPU's GEMM decodes an operand with one scale a tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/base/error.h"
#include "core/formats/format_id.h"

namespace telens::kernels {

// The values of a matrix of FP8 codes [rows, K] without a scale, exact, each row in one piece:
// codes that are a transposed view are transposed on the way. Views with a dimension that is no
// multiple of 16, and dtypes other than BF16 and FP32, which no GEMM asks for, keep their strides.
TELENS_EXPORT at::Tensor decode_row_by_row(const at::Tensor& codes, FormatId format,
                                           at::ScalarType dtype);

}  // namespace telens::kernels
