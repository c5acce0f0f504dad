// Helpers of the launchers of kernels that compare a tensor with its codes.
#pragma once

#include "core/kernels/cuda/blocks/block_launch.cuh"
#include "core/kernels/cuda/statistics/statistics_block_casts.cuh"

namespace telens::cuda {

inline bool is_whole(const CastMatrix& cast) {
  return cast.x.columns % kColumnsOfThread == 0 && is_aligned(cast.x.x, 16) && is_whole(cast.codes);
}

}  // namespace telens::cuda
