// Pads the tokens of quantized operands with zeros to the multiple that FP8 GEMMs require.
//
// Tokens are the rows of activations and gradients. Only the GEMM needs the multiple: tensors are
// quantized, measured and dumped without padding, and the codes are padded before the GEMM. This is
// exact: scales come from the tensor's elements, a partly filled last block has the scale that
// zeros would give it, and zeros add nothing to a sum.
#pragma once

#include <cstdint>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

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
