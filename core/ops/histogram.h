// Histograms of a tensor's values as operators `telens::exponent_histogram` and
// `telens::code_histogram`: both add to counts, so that micro-batches and parts of a tensor give
// the same counts as the whole.
//
// x has any shape and strides, and may be empty. counts: int64, contiguous, on x's device, one
// element for each bin of core/ops/histogram_layout.h. Equal inputs give equal counts on every
// device and with any number of threads.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/base/error.h"

namespace telens::ops {

// x is BF16, FP16 or FP32; counts has kExponentBins elements.
TELENS_EXPORT void exponent_histogram(const at::Tensor& x, at::Tensor& counts);

// x is BF16 or FP16; counts has kCodeBins elements.
TELENS_EXPORT void code_histogram(const at::Tensor& x, at::Tensor& counts);

// Zeros to add to.
TELENS_EXPORT at::Tensor empty_exponent_histogram(const at::Device& device);
TELENS_EXPORT at::Tensor empty_code_histogram(const at::Device& device);

// The checks of every backend's histogram kernels.
void check_exponent_histogram(const at::Tensor& x, const at::Tensor& counts);
void check_code_histogram(const at::Tensor& x, const at::Tensor& counts);

}  // namespace telens::ops
