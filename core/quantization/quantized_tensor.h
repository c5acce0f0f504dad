// A tensor in low precision: codes and scales, as plain tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "core/formats/format_id.h"
#include "core/formats/scaling_mode.h"

namespace telens {

// One orientation of a quantized matrix [rows, columns].
struct QuantizedData {
  // uint8 codes. Rowwise: [rows, columns], blocks along a row. Columnwise: [columns, rows], that
  // is, the transposed matrix, blocks along a column of the original. For `tensor` scaling the
  // columnwise codes are the same codes transposed (a view of them where the GEMM takes any
  // layout); for the block modes they are quantized separately.
  at::Tensor codes;
  // FP32, 1 element for `tensor`; one element a block otherwise (E8M0 and E4M3 scales as uint8).
  at::Tensor scale_inv;

  bool defined() const { return codes.defined(); }
};

// value = decode(code) * scale_inv. A struct of plain tensors, cheap to copy, saved for backward
// piece by piece through save_for_backward.
struct QuantizedTensor {
  QuantizedData rowwise;     // feeds the first GEMM of the tensor
  QuantizedData columnwise;  // feeds the second one
  FormatId format = FormatId::e4m3;
  ScalingMode mode = ScalingMode::tensor;
  at::ScalarType dtype = at::kBFloat16;  // of the high-precision tensor that it stands for
  std::vector<std::int64_t> sizes;       // of that tensor; codes are its 2-D flattening

  // The high-precision values, from the rowwise codes if present, else from the columnwise ones.
  // Shape `sizes`, dtype `dtype`; each value rounded once.
  at::Tensor dequantize() const;
};

// What feeds a GEMM or comes out of modify_tensor: plain (high precision) or quantized.
using Operand = std::variant<at::Tensor, QuantizedTensor>;

inline bool is_quantized(const Operand& operand) {
  return std::holds_alternative<QuantizedTensor>(operand);
}

}  // namespace telens
