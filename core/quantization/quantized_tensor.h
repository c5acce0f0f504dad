// A tensor in low precision (codes and scales, as plain tensors), the operands of GEMMs, and the
// padding of their tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/formats/convert.h"
#include "core/formats/format_id.h"
#include "core/formats/scheme.h"
#include "core/quantization/block_options.h"

namespace telens {

// One orientation of a quantized matrix [rows, columns].
struct QuantizedData {
  // uint8 codes.
  // Rowwise: [rows, columns], blocks along a row.
  // Columnwise: [columns, rows], the transposed matrix, blocks along a column of the original. For
  // `tensor` scaling these are the rowwise codes transposed (a view if the GEMM accepts any
  // layout); block modes quantize them separately.
  // NVFP4 stores two codes per byte, the even column in the lower four bits: [rows, columns / 2]
  // and [columns, rows / 2].
  at::Tensor codes;
  // `tensor` scaling: FP32, 1 element. Block modes: one element per block of the codes, [rows /
  // block height, columns / block length] rounded up (core/formats/scheme.h); E8M0 and E4M3 scales
  // are stored as uint8.
  at::Tensor scale_inv;
  // NVFP4: FP32, 1 element, or one per row of `codes` with BlockOptions::row_scaled; value =
  // decode(code) * scale_inv * tensor_scale. Undefined in other modes.
  at::Tensor tensor_scale = {};

  bool defined() const { return codes.defined(); }
  bool has_scales_of_rows() const { return tensor_scale.defined() && tensor_scale.numel() != 1; }

  // Copies codes and scales of the same layout into this storage. Does nothing if this is not
  // defined.
  void fill(const QuantizedData& from) const;
};

class CustomGemm;

// value = decode(code) * scale_inv. A struct of plain tensors that is cheap to copy; its tensors
// are saved for backward through save_for_backward.
struct QuantizedTensor {
  QuantizedData rowwise;     // operand of the tensor's first GEMM
  QuantizedData columnwise;  // operand of the second one
  FormatId format = FormatId::e4m3;
  ScalingMode mode = ScalingMode::tensor;
  at::ScalarType dtype = at::kBFloat16;  // dtype of the high-precision tensor
  std::vector<std::int64_t> sizes;       // shape of the high-precision tensor
  BlockOptions blocks;                   // of block modes
  // 128-blocks: the quantizer guarantees that all scales are powers of two from 2^-127 to 2^120.
  // False for codes and scales from other sources.
  bool power_of_2_scales = false;
  // The quantizer's custom GEMM; nullptr if the device's GEMM multiplies this tensor.
  std::shared_ptr<const CustomGemm> custom_gemm = {};

  // Returns the high-precision values with shape `sizes` and dtype `dtype`, each rounded once. Uses
  // the rowwise codes if present, else the columnwise ones, and inverts a random Hadamard
  // transform.
  at::Tensor dequantize() const;
};

// An operand of a GEMM or a result of modify_tensor: high precision or quantized.
using Operand = std::variant<at::Tensor, QuantizedTensor>;

inline bool is_quantized(const Operand& operand) {
  return std::holds_alternative<QuantizedTensor>(operand);
}

// Returns nullptr if the operand is null or in high precision.
inline const QuantizedTensor* quantized_or_null(const Operand* operand) {
  return std::get_if<QuantizedTensor>(operand);
}

// Returns the values in high precision, as a matrix.
inline at::Tensor plain_values(const Operand& operand) {
  const QuantizedTensor* quantized = quantized_or_null(&operand);
  if (quantized == nullptr) return std::get<at::Tensor>(operand);
  return quantized->dequantize().reshape({-1, quantized->sizes.back()});
}

struct CustomGemmCall {
  Gemm gemm;
  // Orientations: fprop: activation and weight rowwise; dgrad: gradient rowwise, weight columnwise;
  // wgrad: gradient and activation columnwise. The other orientations may be missing.
  const QuantizedTensor& a;
  const QuantizedTensor& b;
  const at::Tensor& bias;  // undefined except for fprop with a bias
  at::ScalarType out_dtype;
  bool split_accumulator;
};

class CustomGemm {
 public:
  virtual ~CustomGemm() = default;

  // Returns the product in `out_dtype`. fprop: [tokens, out]; dgrad: [tokens, in]; wgrad: [out,
  // in]. There is at least one token; tokens are not padded. Must be thread-safe.
  virtual at::Tensor multiply(const CustomGemmCall& call) const = 0;
};

// Returns rows `first` to `first + count` of the matrix, [count, columns], as a view. Throws
// ShapeError if that would cut a block.
QuantizedTensor quantized_rows(const QuantizedTensor& whole, std::int64_t first,
                               std::int64_t count);

// Returns the number of rows of the operand's matrix, from either orientation.
std::int64_t get_rows(const Operand& operand);

// Returns columns of the matrix; of a quantized one only the rowwise orientation. Throws ShapeError
// if that would cut a block.
Operand get_columns(const Operand& whole, std::int64_t first, std::int64_t count);

// Pads the tokens of quantized operands with zeros to the multiple that FP8 GEMMs require.
//
// Tokens are the rows of activations and gradients. Only the GEMM needs the multiple: tensors are
// quantized, measured and dumped without padding, and the codes are padded before the GEMM. This is
// exact: scales come from the tensor's elements, a partly filled last block has the scale that
// zeros would give it, and zeros add nothing to a sum.
struct TokenPadding {
  std::int64_t tokens = 0;
  std::int64_t padded = 0;    // tokens of the GEMM
  std::int64_t multiple = 1;  // `padded` is a multiple of it

  bool needed() const { return padded != tokens; }
};

// Returns the padding of a GEMM. a: its left operand. Tokens are the rows of the result (fprop,
// dgrad) or the summed dimension (wgrad). Both operands have the same number of tokens and the same
// mode, or one has 1-D and one has 2-D 128-blocks. Tokens that are a multiple of the scheme's
// row_multiple are never padded.
TELENS_EXPORT TokenPadding token_padding(Gemm gemm, const QuantizedTensor& a);

// Returns `rows` rounded up to the 16 rows of the random Hadamard transform.
std::int64_t rows_to_transform(std::int64_t rows);

// Pads codes and scales [tokens, ...].
QuantizedData pad_rows(const QuantizedData& data, ScalingMode mode, std::int64_t rows);

// Pads codes and scales [..., tokens].
QuantizedData pad_columns(const QuantizedData& data, ScalingMode mode, std::int64_t columns);

}  // namespace telens
