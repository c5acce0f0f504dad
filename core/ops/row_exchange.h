// Moves rows of tokens to the experts of a mixture and back: operators `telens::spread_rows`,
// `telens::combine_rows` and `telens::row_products`.
//
// A token has up to `slots` rows across all experts. places: int32 [tokens, slots], any strides:
// the row of each slot. A place below 0 or past the last row is empty. No row occurs twice.
// weights: [tokens, slots], FP32 (FP64 for FP64 values); without weights, each row counts once.
//
// Each operator is the gradient of the two others, so all of them can be differentiated any number
// of times (core/modules/moe/moe_permutation.cpp). Sums and products are FP32 (FP64 for
// FP64), in the order of the slots, and rounded once: the same bits with any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/base/error.h"

namespace telens::ops {

// Returns [rows, width]: row places[t, k] is weights[t, k] * x[t]; a row that is not in `places` is
// 0. x: [tokens, width]. Without weights, x may have any dtype, and its bits are copied.
TELENS_EXPORT at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& places,
                                     const std::optional<at::Tensor>& weights, std::int64_t rows);

// Returns [tokens, width]: the sum over k of weights[t, k] * x[places[t, k]]; 0 for a token without
// rows. x: [rows, width]. A single slot without weights copies bits, of any dtype.
TELENS_EXPORT at::Tensor combine_rows(const at::Tensor& x, const at::Tensor& places,
                                      const std::optional<at::Tensor>& weights);

// Returns [tokens, slots], FP32: the inner product of x[places[t, k]] and y[t], 0 for an empty
// place. x: [rows, width], y: [tokens, width].
TELENS_EXPORT at::Tensor row_products(const at::Tensor& x, const at::Tensor& y,
                                      const at::Tensor& places);

// Returns the dtype of weights and sums for values of a dtype: FP64 for FP64, otherwise FP32.
inline at::ScalarType summed_dtype(at::ScalarType values) {
  return values == at::kDouble ? at::kDouble : at::kFloat;
}

// Argument checks of every backend's kernels. Each throws ShapeError naming the argument.
void check_spread_rows(const at::Tensor& x, const at::Tensor& places,
                       const std::optional<at::Tensor>& weights, std::int64_t rows);
void check_combine_rows(const at::Tensor& x, const at::Tensor& places,
                        const std::optional<at::Tensor>& weights);
void check_row_products(const at::Tensor& x, const at::Tensor& y, const at::Tensor& places);

}  // namespace telens::ops
