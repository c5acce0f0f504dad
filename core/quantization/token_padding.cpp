#include "core/quantization/token_padding.h"

#include <ATen/ops/constant_pad_nd.h>
#include <c10/util/accumulate.h>

#include "core/formats/formats.h"
#include "core/ops/block_quantize_checks.h"

namespace telens {
namespace {

std::int64_t get_tokens(Gemm gemm, const QuantizedTensor& a) {
  if (gemm != Gemm::wgrad) return a.rowwise.codes.size(0);
  if (!is_packed_fp4(a.mode)) return a.columnwise.codes.size(1);
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
