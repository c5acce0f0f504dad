// The checks of every backend's statistics kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/ops/statistics.h"

namespace telens::ops {

void check_statistics(const at::Tensor& x, at::TensorList scales, at::IntArrayRef formats);
// accumulator: as in accumulate_statistics, with any number of casts.
void check_central_moments(const at::Tensor& x, const at::Tensor& accumulator);
void check_blockwise_dynamic_range(const at::Tensor& x, std::int64_t block_size, std::int64_t dims);

// accumulator: int64, contiguous, `words` elements, on x's device.
void check_accumulator(const char* operation, const at::Tensor& x, const at::Tensor& accumulator,
                       std::int64_t words);

}  // namespace telens::ops
