// The ends of an FP8 attention that is made of several, as under context parallelism: its results
// are sums of values of codes.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_scores.h"

namespace telens {

// The same tensors. Their gradients, once all are there, are cast under one scale where the
// projections in front take that cast over (fp8_mha), and the backward of the region ends.
QueryKeyValueHeads with_ended_gradients(const QueryKeyValueHeads& heads, const Fp8Attention& fp8);

// [batch, heads, seq, size]: values of codes where the projection behind takes the cast over, else
// the output itself. The gradient passes.
at::Tensor end_output(const at::Tensor& output, const Fp8Attention& fp8);

}  // namespace telens
