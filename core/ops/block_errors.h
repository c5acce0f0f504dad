// Block formats, block by block: the operators `telens::block_cast_errors` and
// `telens::block_copies_difference`, called through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"
#include "core/ops/statistics_block_casts.h"

namespace telens::ops {

// One read of x and its codes. x: BF16, FP16 or FP32 [rows, columns] of the codes' own orientation
// (of a columnwise copy the transposed matrix), any strides. Returns int64 [rows / block height,
// columns / block length, kBlockErrorsWords], both rounded up: BlockErrors
// (core/ops/block_errors_layout.h).
TELENS_EXPORT at::Tensor block_cast_errors(const at::Tensor& x, const BlockCast& cast);

// The two copies of one matrix [rows, columns]; codes of `columnwise` are those of the transposed
// one, with these signs of its random Hadamard transform, if it has one. Returns int64
// [kCopiesDifferenceWords]: CopiesDifference.
TELENS_EXPORT at::Tensor block_copies_difference(const BlockCast& rowwise,
                                                 const BlockCast& columnwise,
                                                 std::optional<std::uint16_t> hadamard_signs);

// The checks of every backend's kernel: copies of one matrix, of one format and mode.
void check_block_copies(const BlockCodes& rowwise, const BlockCodes& columnwise,
                        std::int64_t format, std::int64_t mode);

// The FP32 values of a columnwise copy with the random Hadamard transform of these signs undone:
// [rows, columns] as the rowwise copy.
at::Tensor without_transform(const BlockCast& columnwise, std::int64_t rows, std::int64_t signs);

}  // namespace telens::ops
