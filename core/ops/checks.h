// Checks that the operators of every backend share. Each names the operation and the argument.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "core/base/error.h"
#include "core/formats/format_id.h"

namespace telens::ops {

// BF16, FP16 or FP32: the dtypes that high-precision tensors have. Throws ShapeError for any other.
FormatId check_high_precision(std::string_view operation, std::string_view argument,
                              at::ScalarType dtype);

// FP32 with one element, on the device of `reference`, as scales and amaxes are.
void check_one_float(std::string_view operation, std::string_view argument,
                     const at::Tensor& tensor, const at::Tensor& reference);

// E4M3 or E5M2. Throws UsageError for any other.
FormatId check_fp8_format(std::string_view operation, std::int64_t format);

}  // namespace telens::ops
