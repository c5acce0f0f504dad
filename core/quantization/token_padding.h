// Tokens of quantized GEMMs that are no multiple of what FP8 takes: zeros behind them.
//
// Tokens are the rows of activations and gradients. Only a GEMM needs them in multiples: tensors
// are quantized, measured and dumped as they are, and their codes get zeros in front of the GEMM.
// That is exact: a scale is made of the tensor's own elements, a block that the last tokens fill in
// part has the scale that zeros behind them would leave it, and zeros add nothing to a sum.
#pragma once

#include <cstdint>

#include "core/base/error.h"
#include "core/base/names.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

struct TokenPadding {
  std::int64_t tokens = 0;
  std::int64_t padded = 0;    // the tokens that the GEMM gets
  std::int64_t multiple = 1;  // `padded` is a multiple of it

  bool needed() const { return padded != tokens; }
};

// a: the left operand of the GEMM. Its tokens are the rows of the result (fprop, dgrad) or what is
// summed over (wgrad). Both operands of a GEMM have as many, in one mode or in 128-blocks of both
// kinds. Tokens that are a multiple of the scheme's row_multiple are never padded.
TELENS_EXPORT TokenPadding token_padding(Gemm gemm, const QuantizedTensor& a);

// `rows` with the zeros behind them that the random Hadamard transform takes along, 16 at a time.
std::int64_t rows_to_transform(std::int64_t rows);

// Codes and scales [tokens, ...] of an operand's rows.
QuantizedData pad_rows(const QuantizedData& data, ScalingMode mode, std::int64_t rows);

// Codes and scales [..., tokens] of what is summed over.
QuantizedData pad_columns(const QuantizedData& data, ScalingMode mode, std::int64_t columns);

}  // namespace telens
