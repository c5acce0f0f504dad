#include "core/kernels/cuda/statistics/block_errors.cuh"

#include "core/kernels/cuda/statistics/cast_launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

template <typename Input, typename ScaleFormat, typename X, CodePairs pairs,
          BlockDirection direction>
__global__ void __launch_bounds__(kThreads)
    block_cast_errors_kernel(BlockErrorsArguments arguments) {
  block_cast_errors<Input, ScaleFormat, X, pairs, direction>(arguments, GpuThread());
}

// Resident thread blocks per multiprocessor for blocks along the rows. For blocks down the columns,
// a thread has sums of eight blocks, and fewer thread blocks are resident.
constexpr int kResident = blocks_with(128);

// Calls visitor.operator()<direction>() for the directions that are possible with such scales and
// codes. Blocks with two codes per byte have the direction of the pairs. Squares have FP32 scales.
template <typename ScaleFormat, CodePairs pairs, typename Visitor>
cudaError_t dispatch_direction(BlockDirection direction, const Visitor& visitor) {
  if constexpr (pairs == CodePairs::along_row) {
    return visitor.template operator()<BlockDirection::along_rows>();
  } else if constexpr (pairs == CodePairs::down_columns) {
    return visitor.template operator()<BlockDirection::down_columns>();
  } else {
    if constexpr (ScaleFormat::kWidth == 32) {
      if (direction == BlockDirection::squares) {
        return visitor.template operator()<BlockDirection::squares>();
      }
    }
    return direction == BlockDirection::along_rows
               ? visitor.template operator()<BlockDirection::along_rows>()
               : visitor.template operator()<BlockDirection::down_columns>();
  }
}

}  // namespace

cudaError_t launch_block_cast_errors(const BlockErrorsArguments& given, const BlockCastKind& kind,
                                     const LaunchContext& context) {
  BlockErrorsArguments arguments = given;
  arguments.matrix.whole = is_whole(arguments.matrix);
  const BlockMatrix& x = arguments.matrix.x;
  if (is_empty(x)) return cudaSuccess;
  const std::int64_t rows =
      arguments.direction == BlockDirection::along_rows ? kDecodeRows : arguments.block;
  const std::int64_t threads = count_tiles(x.rows, rows) * count_tiles(x.columns, kColumnsOfThread);
  const unsigned grid = grid_for(count_tiles(threads, kThreads), kResident, context);
  return dispatch_codes(arguments.matrix.codes.pairs, kind.element, kind.mode,
                        [&]<typename Input, typename ScaleFormat, CodePairs pairs>() {
                          return dispatch_high_precision(kind.x, [&]<typename X>() {
                            return dispatch_direction<ScaleFormat, pairs>(
                                arguments.direction, [&]<BlockDirection direction>() {
                                  block_cast_errors_kernel<Input, ScaleFormat, X, pairs, direction>
                                      <<<grid, kThreads, 0, context.stream>>>(arguments);
                                  return cudaGetLastError();
                                });
                          });
                        });
}

}  // namespace telens::cuda
