// Argument checks of every backend's kernels of row_exchange.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/ops/row_exchange.h"

namespace telens::ops {

// Returns the dtype of weights and sums for values of a dtype: FP64 for FP64, otherwise FP32.
inline at::ScalarType summed_dtype(at::ScalarType values) {
  return values == at::kDouble ? at::kDouble : at::kFloat;
}

// Each throws ShapeError naming the argument.
void check_spread_rows(const at::Tensor& x, const at::Tensor& places,
                       const std::optional<at::Tensor>& weights, std::int64_t rows);
void check_combine_rows(const at::Tensor& x, const at::Tensor& places,
                        const std::optional<at::Tensor>& weights);
void check_row_products(const at::Tensor& x, const at::Tensor& y, const at::Tensor& places);

}  // namespace telens::ops
