#include "core/quantization/quantized_tensor.h"

#include <c10/util/accumulate.h>

#include "core/ops/block_quantize.h"
#include "core/ops/quantize.h"

namespace telens {
namespace {

// [rows, columns] of the codes' own matrix.
at::Tensor dequantized(const QuantizedData& data, const QuantizedTensor& tensor,
                       std::int64_t columns) {
  if (tensor.mode == ScalingMode::tensor) {
    return ops::dequantize_fp8(data.codes, data.scale_inv, tensor.format, tensor.dtype);
  }
  return ops::dequantize_blocks({data.codes, data.scale_inv, data.tensor_scale}, tensor.format,
                                tensor.mode, tensor.dtype)
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
    return dequantized(rowwise, *this, columns).reshape(sizes);
  }
  const std::int64_t rows = columns == 0 ? 0 : c10::multiply_integers(sizes) / columns;
  const at::Tensor values = dequantized(columnwise, *this, rows).t();
  return (blocks.hadamard_signs
              ? ops::hadamard_transform(values, *blocks.hadamard_signs, /*inverse=*/true)
              : values)
      .reshape(sizes);
}

}  // namespace telens
