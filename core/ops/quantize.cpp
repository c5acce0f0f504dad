#include "core/ops/quantize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include <tuple>
#include <utility>

#include "core/ops/checks.h"
#include "core/ops/dispatcher.h"

namespace telens::ops {
namespace {

void check_codes(std::string_view operation, const at::Tensor& codes) {
  if (codes.scalar_type() != at::kByte) {
    raise<ShapeError>("{}: codes have dtype {}; expected Byte (uint8), the bits of the FP8 values",
                      operation, c10::toString(codes.scalar_type()));
  }
}

at::Tensor amax_meta(const at::Tensor& x) {
  check_high_precision("amax", "x", x.scalar_type());
  return at::empty({}, x.options().dtype(at::kFloat));
}

at::Tensor quantize_fp8_meta(const at::Tensor& x, const at::Tensor& scale,
                             const std::optional<at::Tensor>& amax, std::int64_t format) {
  check_quantize_fp8(x, scale, amax, format);
  return empty_codes(x);
}

// For every device that does not have a kernel for it.
std::tuple<at::Tensor, at::Tensor> quantize_fp8_and_transpose(const at::Tensor& x,
                                                              const at::Tensor& scale,
                                                              const std::optional<at::Tensor>& amax,
                                                              std::int64_t format) {
  at::Tensor codes = quantize_fp8(x, scale, amax, check_fp8_format("quantize_fp8_both", format));
  at::Tensor transposed = codes.t();
  return {std::move(codes), std::move(transposed)};
}

at::Tensor view_of_transposed_codes(const at::Tensor& codes) {
  check_transpose_codes(codes);
  return codes.t();
}

at::Tensor dequantize_fp8_meta(const at::Tensor& codes, const at::Tensor& scale_inv,
                               std::int64_t format, at::ScalarType dtype) {
  check_dequantize_fp8(codes, scale_inv, format, dtype);
  return empty_values(codes, dtype);
}

at::Tensor decode_fp8_meta(const at::Tensor& codes, std::int64_t format, at::ScalarType dtype) {
  check_decode_fp8(codes, format, dtype);
  return empty_values(codes, dtype);
}

}  // namespace

FormatId check_quantize_fp8(const at::Tensor& x, const at::Tensor& scale,
                            const std::optional<at::Tensor>& amax, std::int64_t format) {
  check_high_precision("quantize_fp8", "x", x.scalar_type());
  check_one_float("quantize_fp8", "scale", scale, x);
  if (amax) check_one_float("quantize_fp8", "amax", *amax, x);
  return check_fp8_format("quantize_fp8", format);
}

void check_transpose_codes(const at::Tensor& codes) {
  check_codes("transpose_codes", codes);
  if (codes.dim() != 2) {
    raise<ShapeError>("transpose_codes: codes have shape {}; expected [rows, columns]",
                      c10::str(codes.sizes()));
  }
}

FormatId check_dequantize_fp8(const at::Tensor& codes, const at::Tensor& scale_inv,
                              std::int64_t format, at::ScalarType dtype) {
  check_codes("dequantize_fp8", codes);
  check_one_float("dequantize_fp8", "scale_inv", scale_inv, codes);
  check_high_precision("dequantize_fp8", "the result", dtype);
  return check_fp8_format("dequantize_fp8", format);
}

FormatId check_decode_fp8(const at::Tensor& codes, std::int64_t format, at::ScalarType dtype) {
  check_codes("decode_fp8", codes);
  if (dtype != at::kBFloat16 && dtype != at::kFloat) {
    raise<ShapeError>("decode_fp8: the result has dtype {}; expected BFloat16 or Float",
                      c10::toString(dtype));
  }
  return check_fp8_format("decode_fp8", format);
}

at::Tensor empty_codes(const at::Tensor& x) {
  return at::empty(x.sizes(), x.options().dtype(at::kByte));
}

at::Tensor empty_values(const at::Tensor& codes, at::ScalarType dtype) {
  const auto options = codes.options().dtype(dtype);
  if (codes.is_non_overlapping_and_dense()) {
    return at::empty_strided(codes.sizes(), codes.strides(), options);
  }
  return at::empty(codes.sizes(), options);
}

at::Tensor amax(const at::Tensor& x) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&)>("telens::amax");
  return op.call(x);
}

at::Tensor quantize_fp8(const at::Tensor& x, const at::Tensor& scale,
                        const std::optional<at::Tensor>& amax, FormatId format) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&,
                                                  const std::optional<at::Tensor>&, std::int64_t)>(
      "telens::quantize_fp8");
  return op.call(x, scale, amax, static_cast<std::int64_t>(format));
}

OrientedCodes quantize_fp8_both(const at::Tensor& x, const at::Tensor& scale,
                                const std::optional<at::Tensor>& amax, FormatId format) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::int64_t);
  static const auto op = find_operator<Signature>("telens::quantize_fp8_both");
  auto [codes, transposed] = op.call(x, scale, amax, static_cast<std::int64_t>(format));
  return {std::move(codes), std::move(transposed)};
}

at::Tensor transpose_codes(const at::Tensor& codes) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&)>("telens::transpose_codes");
  return op.call(codes);
}

at::Tensor dequantize_fp8(const at::Tensor& codes, const at::Tensor& scale_inv, FormatId format,
                          at::ScalarType dtype) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, std::int64_t, at::ScalarType)>(
          "telens::dequantize_fp8");
  return op.call(codes, scale_inv, static_cast<std::int64_t>(format), dtype);
}

at::Tensor decode_fp8(const at::Tensor& codes, FormatId format, at::ScalarType dtype) {
  static const auto op = find_operator<at::Tensor(const at::Tensor&, std::int64_t, at::ScalarType)>(
      "telens::decode_fp8");
  return op.call(codes, static_cast<std::int64_t>(format), dtype);
}

}  // namespace telens::ops

TORCH_LIBRARY_IMPL(telens, Meta, library) {
  library.impl("amax", TORCH_FN(telens::ops::amax_meta));
  library.impl("quantize_fp8", TORCH_FN(telens::ops::quantize_fp8_meta));
  library.impl("dequantize_fp8", TORCH_FN(telens::ops::dequantize_fp8_meta));
  library.impl("decode_fp8", TORCH_FN(telens::ops::decode_fp8_meta));
}

TORCH_LIBRARY_IMPL(telens, CompositeExplicitAutograd, library) {
  library.impl("quantize_fp8_both", TORCH_FN(telens::ops::quantize_fp8_and_transpose));
  library.impl("transpose_codes", TORCH_FN(telens::ops::view_of_transposed_codes));
}
