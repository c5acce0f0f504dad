// Dropout of attention weights by a key, as operator `telens::keyed_dropout_`: whether a weight is
// kept depends on a seed and on its position among all weights, not on how they are split into
// blocks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/base/error.h"

namespace telens::ops {

struct KeyedDropout {
  std::int64_t seed = 0;
  double probability = 0;  // that a weight is dropped, from 0 to 1
  // The position of the first weight, each index below 2^32.
  std::int64_t sample = 0;
  std::int64_t head = 0;
  std::int64_t query = 0;
  std::int64_t key = 0;
};

// weights: contiguous [samples, heads, queries, keys], FP32 or FP64; multiplied in place by 0 or by
// 1 / (1 - probability), all by 0 if probability is 1. Weight (sample, head, query, key) is kept if
// word key % 4 of Philox4x32-7 (https://doi.org/10.1145/2063384.2063405; its key is the seed, its
// counter (key / 4, query, sample, head)) is below (1 - probability) * 2^32. Throws ShapeError for
// other weights.
TELENS_EXPORT void keyed_dropout_(const at::Tensor& weights, const KeyedDropout& dropout);

}  // namespace telens::ops
