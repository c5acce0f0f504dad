// Rows of tokens on their way to the experts of a mixture and back, as operators
// `telens::spread_rows`, `telens::combine_rows` and `telens::row_products`.
//
// A token has up to `slots` rows among those of all experts. places: int32 [tokens, slots], any
// strides: the row of each slot. A place below 0 or past the last row is empty. No row is named
// twice. weights: [tokens, slots], FP32 (FP64 for FP64 values); without them each counts once.
//
// Each operator is the gradient of the two others, so all of them can be differentiated as often as
// one likes (core/modules/moe/row_exchange_autograd.cpp). Sums and products are FP32 (FP64 for
// FP64), in the order of the slots, and rounded once: the same bits with any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/base/error.h"

namespace telens::ops {

// [rows, width]: row places[t, k] is weights[t, k] * x[t], a row that no place names is 0.
// x: [tokens, width]; of any dtype where there are no weights, and its bits are copied.
TELENS_EXPORT at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& places,
                                     const std::optional<at::Tensor>& weights, std::int64_t rows);

// [tokens, width]: the sum over k of weights[t, k] * x[places[t, k]]; 0 for a token without rows.
// x: [rows, width]. One slot without weights copies bits, of any dtype.
TELENS_EXPORT at::Tensor combine_rows(const at::Tensor& x, const at::Tensor& places,
                                      const std::optional<at::Tensor>& weights);

// [tokens, slots], FP32: the inner product of x[places[t, k]] and y[t], 0 for an empty place.
// x: [rows, width], y: [tokens, width].
TELENS_EXPORT at::Tensor row_products(const at::Tensor& x, const at::Tensor& y,
                                      const at::Tensor& places);

}  // namespace telens::ops
