// Per-block errors of block formats: the operators `telens::block_cast_errors` and
// `telens::block_copies_difference`, called through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"
#include "core/ops/statistics_block_casts.h"

namespace telens::ops {

// Reads x and its codes once. x: BF16, FP16 or FP32 [rows, columns] in the orientation of the codes
// (for a columnwise copy, the transposed matrix), with any strides. Returns int64 [rows / block
// height, columns / block length, kBlockErrorsWords], both rounded up: BlockErrors
// (core/ops/block_errors_layout.h).
TELENS_EXPORT at::Tensor block_cast_errors(const at::Tensor& x, const BlockCast& cast);

// Compares the two copies of a matrix [rows, columns]. The codes of `columnwise` represent the
// transposed matrix, after a random Hadamard transform with these signs if it has one. Returns
// int64 [kCopiesDifferenceWords]: CopiesDifference.
TELENS_EXPORT at::Tensor block_copies_difference(const BlockCast& rowwise,
                                                 const BlockCast& columnwise,
                                                 std::optional<std::uint16_t> hadamard_signs);

// Checks the arguments of every backend's kernel: copies of the same matrix, in the same format and
// mode.
void check_block_copies(const BlockCodes& rowwise, const BlockCodes& columnwise,
                        std::int64_t format, std::int64_t mode);

// Returns the FP32 values of a columnwise copy after undoing the random Hadamard transform with
// these signs: [rows, columns], like the rowwise copy.
at::Tensor without_transform(const BlockCast& columnwise, std::int64_t rows, std::int64_t signs);

}  // namespace telens::ops
