// Attention under one scale a tensor to keys and values that travel round a ring of ranks as codes,
// with the scale that they were made with: ranks need not have the same one. The casts are those of
// Transformer Engine, of each step by itself; i is a step, and LSE that of all keys.
//
//   P = Q8 K8^T * scale           Q, K and V of a rank are cast under one scale
//   S_i = softmax of the step     cast before it meets V
//   O_i = S8_i V8                 cast under delayed scaling, as it is under current scaling
//   O = sum of O_i exp(LSE_i - LSE)
//   dO                            cast
//   D = sum of dO8 O              O's codes under delayed scaling, which sees its amax then, and
//                                 where sums_output_codes is set
//   S = exp(P - LSE)              cast with the scale of S_i
//   dP = S (dO8 V8^T - D)         cast
//   dQ_i, dK_i, dV_i              cast under one scale under delayed scaling, and added in FP32
#pragma once

#include "core/modules/attention/attention_quantization.h"
#include "core/modules/attention/ring_attention.h"

namespace telens {

// As attend_in_ring, of BF16, FP16 or FP32, without a bias. The end of the region's backward is the
// caller's. Throws ShapeError for FP64.
at::Tensor attend_in_fp8_ring(const QueryKeyValueHeads& heads, const RingAttention& how,
                              const Fp8Attention& fp8);

}  // namespace telens
