// A tensor in low precision: codes and scales, as plain tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "core/formats/format_id.h"
#include "core/formats/scheme.h"
#include "core/quantization/block_options.h"

namespace telens {

// One orientation of a quantized matrix [rows, columns].
struct QuantizedData {
  // uint8 codes. Rowwise: [rows, columns], blocks along a row. Columnwise: [columns, rows], that
  // is, the transposed matrix, blocks along a column of the original. For `tensor` scaling the
  // columnwise codes are the same codes transposed (a view of them where the GEMM takes any
  // layout); for the block modes they are quantized separately. Packed FP4 has two codes a byte,
  // the one of even column in the lower four bits: [rows, columns / 2], columnwise [columns, rows /
  // 2].
  at::Tensor codes;
  // `tensor`: FP32, 1 element. Otherwise one element a block, [rows / block height, columns / block
  // length] of the codes (core/formats/scheme.h), rounded up; E8M0 and E4M3 scales as uint8.
  at::Tensor scale_inv;
  // Packed FP4: FP32, 1 element or (BlockOptions::row_scaled) one for each row of `codes`; value =
  // decode(code) * scale_inv * tensor_scale. Others: undefined.
  at::Tensor tensor_scale = {};

  bool defined() const { return codes.defined(); }
  bool has_scales_of_rows() const { return tensor_scale.defined() && tensor_scale.numel() != 1; }

  // Copies codes and scales of the same layout into this storage; does nothing where this is not
  // defined.
  void fill(const QuantizedData& from) const;
};

class OwnGemm;

// value = decode(code) * scale_inv. A struct of plain tensors, cheap to copy, saved for backward
// piece by piece through save_for_backward.
struct QuantizedTensor {
  QuantizedData rowwise;     // feeds the first GEMM of the tensor
  QuantizedData columnwise;  // feeds the second one
  FormatId format = FormatId::e4m3;
  ScalingMode mode = ScalingMode::tensor;
  at::ScalarType dtype = at::kBFloat16;  // dtype of the high-precision tensor that it stands for
  std::vector<std::int64_t> sizes;       // shape of that tensor; codes are its 2-D flattening
  BlockOptions blocks;                   // for block modes
  // 128-blocks: its quantizer knows that all scales are powers of two, from 2^-127 to 2^120. False
  // for codes and scales from elsewhere, whatever the scales are.
  bool power_of_2_scales = false;
  // The product that its quantizer brings for it (own_gemm.h); nullptr: the device's.
  std::shared_ptr<const OwnGemm> own_gemm = {};

  // The high-precision values, from the rowwise codes if present, else from the columnwise ones (a
  // random Hadamard transform undone).
  // Shape `sizes`, dtype `dtype`; each value rounded once.
  at::Tensor dequantize() const;
};

// An operand of a GEMM, or a result of modify_tensor: plain (high precision) or quantized.
using Operand = std::variant<at::Tensor, QuantizedTensor>;

inline bool is_quantized(const Operand& operand) {
  return std::holds_alternative<QuantizedTensor>(operand);
}

}  // namespace telens
