// Per-block errors of block formats: the operators `telens::block_cast_errors` and
// `telens::block_copies_difference`, called through the dispatcher.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"
#include "core/ops/statistics.h"

namespace telens::ops {

// Reads x and its codes once. x: BF16, FP16 or FP32 [rows, columns] in the orientation of the codes
// (for a columnwise copy, the transposed matrix), with any strides. Returns int64 [rows / block
// height, columns / block length, kBlockErrorsWords], both rounded up: BlockErrors
// (core/ops/statistics_layout.h).
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

// The operator `telens::block_copies_difference` for a backend that can compare two copies: the
// code that all devices share.
//
// Backend has static
//   at::Tensor compare(const BlockCast& rowwise, const BlockCast& columnwise,
//                      std::optional<std::int64_t> hadamard_signs);
// which requires checked copies and returns the result of block_copies_difference.
template <typename Backend>
at::Tensor block_copies_difference_by(const at::Tensor& codes, const at::Tensor& scale_inv,
                                      const std::optional<at::Tensor>& tensor_scale,
                                      const at::Tensor& column_codes,
                                      const at::Tensor& column_scale_inv,
                                      const std::optional<at::Tensor>& column_tensor_scale,
                                      std::int64_t format, std::int64_t mode,
                                      std::optional<std::int64_t> hadamard_signs) {
  const BlockCodes rowwise{codes, scale_inv, tensor_scale.value_or(at::Tensor())};
  const BlockCodes columnwise{column_codes, column_scale_inv,
                              column_tensor_scale.value_or(at::Tensor())};
  check_block_copies(rowwise, columnwise, format, mode);
  const auto element = static_cast<FormatId>(format);
  const auto scaling = static_cast<ScalingMode>(mode);
  return Backend::compare({rowwise, element, scaling}, {columnwise, element, scaling},
                          hadamard_signs);
}

}  // namespace telens::ops
