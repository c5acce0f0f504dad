// Ring attention with per-tensor FP8 scales. Keys and values travel around the ring as codes with
// their scale, which may differ between ranks. Casts follow Transformer Engine, separately in each
// step i; LSE is the log-sum-exp over all keys.
//
//   P = Q8 K8^T * scale           Q, K and V of a rank are cast under one scale
//   S_i = softmax of the step     cast before it meets V
//   O_i = S8_i V8                 cast under delayed scaling, as it is under current scaling
//   O = sum of O_i exp(LSE_i - LSE)
//   dO                            cast
//   D = sum of dO8 O              from O's codes under delayed scaling, which records its
//                                 amax, and if sums_output_codes is set
//   S = exp(P - LSE)              cast with the scale of S_i
//   dP = S (dO8 V8^T - D)         cast
//   dQ_i, dK_i, dV_i              cast under one scale under delayed scaling, and added in FP32
#pragma once

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/ring_attention.h"

namespace telens {

// Like attend_in_ring(), for BF16, FP16 and FP32, without a bias. The caller ends the region's
// backward. Throws ShapeError for FP64.
at::Tensor attend_in_fp8_ring(const QueryKeyValueHeads& heads, const RingAttention& how,
                              const Fp8Attention& fp8);

}  // namespace telens
