// The copies of an observed tensor that have a scale a block: those that the running recipe made,
// and those that another one would have made.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/ops/statistics_block_casts.h"
#include "core/ops/statistics_what_if.h"
#include "hooks/statistics/requests.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// A tensor and its codes, in the orientation of the codes; or a tensor that would be cast.
struct BlockCopy {
  at::Tensor x;  // [rows, columns]; of codes after a Hadamard transform: transformed, in FP32
  ops::BlockCast cast = {};
  // Stands for `cast` where the codes are not needed: x is then the tensor as it is, whatever the
  // orientation.
  std::optional<ops::WhatIfCast> what_if = {};
};

// One for each cast, of block recipes. x: the high-precision tensor, or what stands for it. Where
// the running recipe is asked about, its own codes are read. What another one would do is that of
// the deterministic quantizer that it has for such tensors: no codes are made but those of a
// Hadamard transform.
std::vector<BlockCopy> block_copies(const InspectTensorCall& call, const at::Tensor& x,
                                    std::span<const CastRequest> casts);

// Merges the statistics of each copy into its accumulator (kCastSumsWords). What would be cast is
// read once for all of it.
void accumulate_block_casts(std::span<const BlockCopy> copies, std::span<at::Tensor> accumulators);

// Why block_copies or what reads its copies would fail for a cast of a block recipe; nullopt where
// they would not. sizes: of x.
std::optional<std::string> reason_against_copy(const InspectTensorCall& call,
                                               const CastRequest& cast, at::IntArrayRef sizes);

}  // namespace telens::features
