// Checks and empty results with which every backend's quantize, dequantize and decode kernels
// begin.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/formats/format_id.h"

namespace telens::ops {

FormatId check_quantize_fp8(const at::Tensor& x, const at::Tensor& scale,
                            const std::optional<at::Tensor>& amax, std::int64_t format);
void check_transpose_codes(const at::Tensor& codes);
FormatId check_dequantize_fp8(const at::Tensor& codes, const at::Tensor& scale_inv,
                              std::int64_t format, at::ScalarType dtype);
FormatId check_decode_fp8(const at::Tensor& codes, std::int64_t format, at::ScalarType dtype);

// Returns uint8 of x's shape, contiguous.
at::Tensor empty_codes(const at::Tensor& x);

// Returns a tensor of dtype with the codes' shape, and with their strides if they are dense and
// without overlap; otherwise it is contiguous.
at::Tensor empty_values(const at::Tensor& codes, at::ScalarType dtype);

}  // namespace telens::ops
