// The checks of keyed_dropout_ that every device shares.
#pragma once

#include <ATen/core/Tensor.h>

namespace telens::ops {

// place: sample, head, query and key of the first weight.
void check_keyed_dropout(const at::Tensor& weights, double probability, at::IntArrayRef place);

}  // namespace telens::ops
