// Helpers for the launchers of block-scaled kernels.
#pragma once

#include "core/kernels/cuda/blocks/block_decode.cuh"
#include "core/kernels/cuda/blocks/block_tiles.cuh"
#include "core/kernels/cuda/launch.cuh"

namespace telens::cuda {

// Calls visitor.operator()<whole>().
template <typename Visitor>
cudaError_t dispatch_whole(bool whole, Visitor&& visitor) {
  return whole ? std::forward<Visitor>(visitor).template operator()<true>()
               : std::forward<Visitor>(visitor).template operator()<false>();
}

// Calls visitor.operator()<Input, ScaleFormat, pairs>() for the codes of a block format.
template <typename Visitor>
cudaError_t dispatch_codes(CodePairs pairs, FormatId element, ScalingMode mode, Visitor&& visitor) {
  if (scheme(mode).has_tensor_scale()) {
    return pairs == CodePairs::along_row
               ? visitor.template operator()<E2M1, E4M3, CodePairs::along_row>()
               : visitor.template operator()<E2M1, E4M3, CodePairs::down_columns>();
  }
  return dispatch_fp8(element, [&]<typename Input>() {
    return scheme(mode).scale_format == FormatId::e8m0
               ? visitor.template operator()<Input, E8M0, CodePairs::none>()
               : visitor.template operator()<Input, FP32, CodePairs::none>();
  });
}

inline bool is_empty(const BlockMatrix& matrix) { return matrix.rows == 0 || matrix.columns == 0; }

// Returns true if all rows, of elements and of codes, consist of whole packs of 8 with aligned
// addresses.
template <typename ScaleCode>
bool is_whole(const BlockMatrix& matrix, const BlockOutputs<ScaleCode>& outputs) {
  return matrix.columns % kColumnsOfThread == 0 && is_aligned(matrix.x, 16) &&
         is_aligned(outputs.rowwise.codes, kColumnsOfThread) &&
         is_aligned(outputs.columnwise.codes, kColumnsOfThread);
}

inline bool is_whole(const CodedMatrix& codes) {
  return codes.columns % kColumnsOfThread == 0 && is_aligned(codes.codes, kColumnsOfThread);
}

// Launches a kernel that processes a matrix in the tiles of a block format.
template <auto kernel, int block, typename... Arguments>
cudaError_t launch_by_tiles(const BlockMatrix& matrix, const LaunchContext& context,
                            const Arguments&... arguments) {
  const unsigned grid =
      grid_for(tiles_of_matrix(matrix.rows, matrix.columns, TileShape<block>::kRows),
               count_resident<kernel>(context.device), context);
  kernel<<<grid, kThreads, 0, context.stream>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace telens::cuda
