#include "core/quantization/quantized_tensor.h"

#include <c10/util/accumulate.h>

#include "core/ops/block_quantize.h"
#include "core/ops/quantize.h"
#include "core/quantization/token_padding.h"

namespace telens {
namespace {

// [rows, columns] of the codes' own matrix.
at::Tensor dequantized(const QuantizedData& data, const QuantizedTensor& tensor,
                       std::int64_t columns, at::ScalarType dtype) {
  if (tensor.mode == ScalingMode::tensor) {
    return ops::dequantize_fp8(data.codes, data.scale_inv, tensor.format, dtype);
  }
  return ops::dequantize_blocks({data.codes, data.scale_inv, data.tensor_scale}, tensor.format,
                                tensor.mode, dtype)
      .narrow(1, 0, columns);
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

}  // namespace telens
