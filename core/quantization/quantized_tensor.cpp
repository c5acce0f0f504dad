#include "core/quantization/quantized_tensor.h"

#include "core/ops/quantize.h"

namespace telens {

at::Tensor QuantizedTensor::dequantize() const {
  if (rowwise.defined()) {
    return ops::dequantize_fp8(rowwise.codes, rowwise.scale_inv, format, dtype).view(sizes);
  }
  return ops::dequantize_fp8(columnwise.codes.t(), columnwise.scale_inv, format, dtype)
      .reshape(sizes);
}

}  // namespace telens
