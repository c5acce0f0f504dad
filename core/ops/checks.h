// Checks that the operators of every backend share. Each names the operation and the argument.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "core/base/error.h"
#include "core/formats/format_id.h"

namespace telens::ops {

// Checks for BF16, FP16 or FP32, the dtypes of high-precision tensors. Throws ShapeError for any
// other dtype.
FormatId check_high_precision(std::string_view operation, std::string_view argument,
                              at::ScalarType dtype);

// Checks for FP32 with one element, on the device of `reference`, as for scales and amaxes.
void check_one_float(std::string_view operation, std::string_view argument,
                     const at::Tensor& tensor, const at::Tensor& reference);

// Checks for E4M3 or E5M2. Throws UsageError for any other format.
FormatId check_fp8_format(std::string_view operation, std::int64_t format);

}  // namespace telens::ops
