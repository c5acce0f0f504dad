// The bytes in which state_dict stores the state of delayed scaling.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/quantization/delayed_scaling.h"

namespace telens {

// Serializes a layer's state. Little-endian layout:
//
//   magic     8 bytes   name and version
//   then for forward and backward:
//     length    uint32    rows of the amax history
//     checksum  uint32    of all bytes, computed with this field set to 0; forward only, 0 in
//                         backward. States of earlier versions have 0, which is not checked
//     slots     uint32    tensors of the direction
//     pending   uint32    iterations since the last scale update (DelayedScaling::interval)
//     history   FP32[length * slots]
//     scales    FP32[slots]
//
// The size depends only on `length`, so torch.distributed.checkpoint can load into the bytes of any
// other layer. Earlier versions appended `pending` as two int64, and only if one of them was not 0.
// Returns a 1-D uint8 tensor on the CPU; empty if the state is.
at::Tensor get_bytes(const DelayedScalingState& state);

// Parses what get_bytes() wrote. Throws UsageError on other bytes, on a wrong checksum, on a scale
// that no training can produce, and on a negative amax; the last two errors name the tensor. Warns
// if an amax is NaN, which can happen in a training, and if a scale is far from what the amaxes
// require. `source`: the checkpoint's entry, with which messages begin.
DelayedScalingState state_from_bytes(const at::Tensor& bytes,
                                     const std::string& source = "_extra_state");

// Joins the states of a module's layers into one byte string, and splits it again. split_bytes()
// returns the output of get_bytes() as a single part.
at::Tensor join_bytes(const std::vector<at::Tensor>& parts);
std::vector<at::Tensor> split_bytes(const at::Tensor& joined, const std::string& source);

}  // namespace telens
