#include "core/quantization/quantized_tensor.h"

#include <ATen/ops/constant_pad_nd.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/formats/formats.h"
#include "core/ops/block_quantize.h"
#include "core/ops/quantize.h"

namespace telens {
namespace {

// Returns the values of an orientation, in the shape of its codes.
at::Tensor dequantized(const QuantizedData& data, const QuantizedTensor& tensor,
                       std::int64_t columns, at::ScalarType dtype) {
  if (tensor.mode == ScalingMode::tensor) {
    return ops::dequantize_fp8(data.codes, data.scale_inv, tensor.format, dtype);
  }
  return ops::dequantize_blocks({data.codes, data.scale_inv, data.tensor_scale}, tensor.format,
                                tensor.mode, dtype)
      .narrow(1, 0, columns);
}

// Selects `count` from `first` along `dimension` in one orientation. `per_code` elements share a
// byte and `per_scale` elements share a scale; 0 if the tensor has one scale.
QuantizedData select_part(const QuantizedData& whole, std::int64_t dimension, std::int64_t first,
                          std::int64_t count, std::int64_t per_code, std::int64_t per_scale) {
  if (!whole.defined()) return {};
  QuantizedData part = whole;
  part.codes = whole.codes.narrow(dimension, first / per_code, count / per_code);
  if (per_scale == 0) return part;
  const std::int64_t scales = (count + per_scale - 1) / per_scale;
  part.scale_inv = whole.scale_inv.narrow(dimension, first / per_scale, scales);
  if (dimension == 0 && whole.has_scales_of_rows()) {
    part.tensor_scale = whole.tensor_scale.narrow(0, first, count);
  }
  return part;
}

void check_blocks(const char* what, std::int64_t first, std::int64_t count,
                  const ScalingScheme& layout) {
  const std::int64_t block = std::max<std::int64_t>(layout.block_length, 1);
  if (first % block == 0 && count % block == 0) return;
  raise<ShapeError>(
      "{} {} to {} of a tensor in {} scaling would cut a block of {}; store weights of such a size "
      "apart",
      what, first, first + count, layout.name, block);
}

}  // namespace

void QuantizedData::fill(const QuantizedData& from) const {
  if (!defined()) return;
  codes.copy_(from.codes);
  scale_inv.copy_(from.scale_inv);
  if (tensor_scale.defined()) tensor_scale.copy_(from.tensor_scale);
}

at::Tensor QuantizedTensor::dequantize() const {
  const std::int64_t columns = sizes.back();
  if (rowwise.defined()) {
    return dequantized(rowwise, *this, columns, dtype).reshape(sizes);
  }
  const std::int64_t rows = columns == 0 ? 0 : c10::multiply_integers(sizes) / columns;
  if (!blocks.hadamard_signs) {
    return dequantized(columnwise, *this, rows, dtype).t().reshape(sizes);
  }
  const at::Tensor rotated =
      dequantized(columnwise, *this, rows_to_transform(rows), at::kFloat).t();
  return ops::hadamard_transform(rotated, *blocks.hadamard_signs, /*inverse=*/true)
      .narrow(0, 0, rows)
      .to(dtype)
      .reshape(sizes);
}

QuantizedTensor quantized_rows(const QuantizedTensor& whole, std::int64_t first,
                               std::int64_t count) {
  const ScalingScheme layout = scheme(whole.mode);
  // Blocks along a column and square blocks begin at multiples of their length.
  check_blocks("rows", first, count, layout);
  const std::int64_t height = layout.block_length == 0 ? 0 : layout.block_height;
  QuantizedTensor part = whole;
  part.sizes = {count, whole.sizes.back()};
  part.rowwise = select_part(whole.rowwise, 0, first, count, 1, height);
  part.columnwise =
      select_part(whole.columnwise, 1, first, count, layout.codes_per_byte(), layout.block_length);
  return part;
}

std::int64_t get_rows(const Operand& operand) {
  if (const auto* codes = std::get_if<QuantizedTensor>(&operand)) return codes->sizes[0];
  return std::get<at::Tensor>(operand).size(0);
}

Operand get_columns(const Operand& whole, std::int64_t first, std::int64_t count) {
  const auto* codes = std::get_if<QuantizedTensor>(&whole);
  if (codes == nullptr) return std::get<at::Tensor>(whole).narrow(1, first, count);
  const ScalingScheme layout = scheme(codes->mode);
  check_blocks("columns", first, count, layout);
  QuantizedTensor part = *codes;
  part.sizes = {codes->sizes[0], count};
  part.rowwise =
      select_part(codes->rowwise, 1, first, count, layout.codes_per_byte(), layout.block_length);
  part.rowwise.codes = part.rowwise.codes.contiguous();
  part.rowwise.scale_inv = part.rowwise.scale_inv.contiguous();
  part.columnwise = {};
  return part;
}

namespace {

std::int64_t get_tokens(Gemm gemm, const QuantizedTensor& a) {
  if (gemm != Gemm::wgrad) return a.rowwise.codes.size(0);
  if (!scheme(a.mode).is_packed()) return a.columnwise.codes.size(1);
  // Two codes per byte, padded for the transform: the codes do not determine the tokens.
  const std::int64_t columns = a.sizes.back();
  return columns == 0 ? 0 : c10::multiply_integers(a.sizes) / columns;
}

std::int64_t rounded_up(std::int64_t size, std::int64_t multiple) {
  return ops::rounded_up_quotient(size, multiple) * multiple;
}

// Extends a matrix with `fill` at the bottom and right; keeps the memory layout.
at::Tensor extended(const at::Tensor& matrix, std::int64_t rows, std::int64_t columns,
                    double fill = 0) {
  if (matrix.size(0) == rows && matrix.size(1) == columns) return matrix;
  if (ops::is_transposed(matrix)) return extended(matrix.t(), columns, rows, fill).t();
  const std::int64_t padding[] = {0, columns - matrix.size(1), 0, rows - matrix.size(0)};
  return at::constant_pad_nd(matrix, padding, fill);
}

// rows, columns: of the stored codes; values: per row.
QuantizedData extended(const QuantizedData& data, ScalingMode mode, std::int64_t rows,
                       std::int64_t columns, std::int64_t values) {
  QuantizedData padded = data;
  padded.codes = extended(data.codes, rows, columns);
  if (mode == ScalingMode::tensor) return padded;
  // Scales of zero blocks, as the quantizers compute them: 1 for 128-blocks, else code 0.
  const bool is_fp32 = data.scale_inv.scalar_type() == at::kFloat;
  padded.scale_inv =
      extended(data.scale_inv, ops::rounded_up_quotient(rows, block_height(mode)),
               ops::rounded_up_quotient(values, block_length(mode)), is_fp32 ? 1 : 0);
  if (data.has_scales_of_rows()) {
    padded.tensor_scale = at::constant_pad_nd(data.tensor_scale, {0, rows - data.codes.size(0)}, 1);
  }
  return padded;
}

}  // namespace

TokenPadding token_padding(Gemm gemm, const QuantizedTensor& a) {
  const std::int64_t tokens = get_tokens(gemm, a);
  const ScalingScheme scaling = scheme(a.mode);
  if (tokens % scaling.row_multiple == 0) return {tokens, tokens, scaling.row_multiple};
  const std::int64_t multiple = gemm == Gemm::wgrad ? scaling.sum_multiple : scaling.row_multiple;
  return {tokens, rounded_up(tokens, multiple), multiple};
}

std::int64_t rows_to_transform(std::int64_t rows) { return rounded_up(rows, ops::kHadamardSize); }

QuantizedData pad_rows(const QuantizedData& data, ScalingMode mode, std::int64_t rows) {
  const std::int64_t columns = data.codes.size(1);
  return extended(data, mode, rows, columns, columns * scheme(mode).codes_per_byte());
}

QuantizedData pad_columns(const QuantizedData& data, ScalingMode mode, std::int64_t columns) {
  return extended(data, mode, data.codes.size(0), columns / scheme(mode).codes_per_byte(), columns);
}

}  // namespace telens
