// Rows and columns of a quantized matrix as tensors of their own.
#pragma once

#include <cstdint>

#include "core/quantization/quantized_tensor.h"

namespace telens {

// Rows `first` to `first + count` of the 2-D flattening, [count, columns], in the memory of the
// whole. Throws ShapeError where that would cut a block.
QuantizedTensor quantized_rows(const QuantizedTensor& whole, std::int64_t first,
                               std::int64_t count);

// The rows of the matrix that an operand is, which may have one orientation alone.
std::int64_t get_rows(const Operand& operand);

// Columns of the matrix, of its rowwise copy alone where it is quantized. Throws ShapeError where
// that would cut a block.
Operand get_columns(const Operand& whole, std::int64_t first, std::int64_t count);

}  // namespace telens
