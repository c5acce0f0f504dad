// The bytes that state_dict keeps of delayed scaling.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/quantization/delayed_scaling.h"

namespace telens {

// A magic word, a version, then per direction (forward, backward) the history's length and slots
// (int64), the history and the scales (FP32), little-endian. Under a recipe with an interval above
// 1 two more int64 follow: the iterations since the last update of each direction, unless both are
// 0. The upper half of the first length is a checksum of all bytes, itself counted as 0; earlier
// versions wrote 0. uint8, 1-D, on the CPU; empty if the state is.
at::Tensor get_bytes(const DelayedScalingState& state);

// The reverse. Throws UsageError on anything else, on a wrong checksum, on a scale that is not
// positive and finite, and on a negative amax; the last two name the tensor. Warns of an amax that
// is NaN, which a training may have met.
DelayedScalingState state_from_bytes(const at::Tensor& bytes);

// Several byte strings as one (a module with two layers), and back. What get_bytes() wrote comes
// back as the only one.
at::Tensor join_bytes(const std::vector<at::Tensor>& parts);
std::vector<at::Tensor> split_bytes(const at::Tensor& joined);

}  // namespace telens
