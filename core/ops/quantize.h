// amax, quantize_fp8, quantize_fp8_both, transpose_codes, dequantize_fp8, decode_fp8: the operators
// of the same names in the operator library `telens`, called through the dispatcher.
//
// High-precision tensors are BF16, FP16 or FP32. FP8 codes are uint8 tensors; format is E4M3 or
// E5M2 (core/formats/formats.h). Any shape, empty and 0-dim included, and any strides. A scale is
// FP32 with one element, positive and finite. Bits are the same on every device and with any number
// of threads. Every function throws ShapeError for an unsupported dtype, size or device, and
// UsageError for a format that is not FP8.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/base/error.h"
#include "core/formats/format_id.h"

namespace telens::ops {

// Returns max |x|, FP32 [] (0-dim) on x's device. A NaN in x makes it NaN; an empty x gives 0.
TELENS_EXPORT at::Tensor amax(const at::Tensor& x);

// Returns the codes of x: saturating encode of float(x) * scale, the product rounded to FP32, then
// once to the format. +-Inf becomes the largest value of its sign. NaN becomes the format's NaN
// code (0x7f) with the sign of x. The result is uint8 of x's shape, contiguous.
//
// amax (FP32, 1 element), if given, becomes max(amax, max |x|), NaN if either is NaN, in the same
// read of x. (A scale outside the contract still has defined bits: the code of |x| * |scale| with
// the exclusive or of the signs.)
TELENS_EXPORT at::Tensor quantize_fp8(const at::Tensor& x, const at::Tensor& scale,
                                      const std::optional<at::Tensor>& amax, FormatId format);

// The codes of a matrix in both orientations, as the GEMMs of a device require them. If they
// accept any layout, `transposed` is a view of `codes`; otherwise it is also stored row by row.
struct OrientedCodes {
  at::Tensor codes;       // [rows, columns]
  at::Tensor transposed;  // [columns, rows]
};
TELENS_EXPORT OrientedCodes quantize_fp8_both(const at::Tensor& x, const at::Tensor& scale,
                                              const std::optional<at::Tensor>& amax,
                                              FormatId format);

// Computes `transposed` of existing codes, with the bits and the layout of quantize_fp8_both.
// codes: [rows, columns].
TELENS_EXPORT at::Tensor transpose_codes(const at::Tensor& codes);

// Returns the values of codes: float(code) * scale_inv, the product rounded to FP32, then to dtype
// (BF16, FP16 or FP32). Values beyond its range become infinity. NaN codes become the quiet NaN
// without payload, signs as in quantize_fp8. The result has the codes' shape, and their strides if
// they are dense (a transposed view stays one); otherwise it is contiguous.
TELENS_EXPORT at::Tensor dequantize_fp8(const at::Tensor& codes, const at::Tensor& scale_inv,
                                        FormatId format, at::ScalarType dtype);

// Returns the values of codes without a scale, exactly. dtype is BF16 or FP32; the layout is the
// same as in dequantize_fp8.
TELENS_EXPORT at::Tensor decode_fp8(const at::Tensor& codes, FormatId format, at::ScalarType dtype);

// Checks and empty results with which every backend's quantize, dequantize and decode kernels
// begin.
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
