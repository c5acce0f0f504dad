// The checks of every backend's histogram kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/ops/histogram.h"

namespace telens::ops {

void check_exponent_histogram(const at::Tensor& x, const at::Tensor& counts);
void check_code_histogram(const at::Tensor& x, const at::Tensor& counts);

}  // namespace telens::ops
