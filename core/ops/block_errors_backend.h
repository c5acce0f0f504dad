// The operator `telens::block_copies_difference` for a backend that can compare two copies: the
// code that all devices share.
//
// Backend has static
//   at::Tensor compare(const BlockCast& rowwise, const BlockCast& columnwise,
//                      std::optional<std::int64_t> hadamard_signs);
// which requires checked copies and returns the result of block_copies_difference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/ops/block_errors.h"

namespace telens::ops {

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
