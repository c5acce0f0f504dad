// Start and end of an FP8 attention that consists of several, as under context parallelism: its
// results are sums of decoded values.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/attention_scores.h"

namespace telens {

// Returns the same tensors. When all gradients are available, their backward quantizes them under
// one scale if the projections reuse that scale (fp8_mha), and ends the region's backward.
QueryKeyValueHeads with_ended_gradients(const QueryKeyValueHeads& heads, const Fp8Attention& fp8);

// Returns the output, rounded to FP8 values if the following projection reuses the scale. [batch,
// heads, seq, size]. The gradient is passed through.
at::Tensor end_output(const at::Tensor& output, const Fp8Attention& fp8);

}  // namespace telens
