// Launchers of the comparison of a matrix with its block cast: statistics, errors by blocks, and
// the difference of two copies.
#include "core/kernels/cuda/blocks/block_launch.cuh"
#include "core/kernels/cuda/statistics/block_errors.cuh"
#include "core/kernels/cuda/statistics/launchers.h"
#include "core/kernels/cuda/statistics/statistics_block_casts.cuh"

namespace telens::cuda {
namespace {

bool is_whole(const CastMatrix& cast) {
  return cast.x.columns % kColumnsOfThread == 0 && is_aligned(cast.x.x, 16) && is_whole(cast.codes);
}

// With 64 FP32 elements per thread, if bytes hold codes of two rows, two resident blocks do not
// leave enough registers. One resident block is faster than spilling.
template <typename X, CodePairs pairs>
constexpr int kCastResident =
    X::kId == FormatId::fp32&& pairs == CodePairs::down_columns ? 1 : kBlockCastResident;

template <typename Input, typename ScaleFormat, typename X, CodePairs pairs>
__global__ void __launch_bounds__(kThreads, kCastResident<X, pairs>)
    block_cast_statistics_kernel(BlockCastArguments arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ MergeShared<CastSums> shared;
  block_cast_statistics<Input, ScaleFormat, X, pairs>(arguments, GpuThread(), shared);
}

template <typename Input, typename ScaleFormat, typename X, CodePairs pairs,
          BlockDirection direction>
__global__ void __launch_bounds__(kThreads)
    block_cast_errors_kernel(BlockErrorsArguments arguments) {
  block_cast_errors<Input, ScaleFormat, X, pairs, direction>(arguments, GpuThread());
}

// Resident thread blocks per multiprocessor for blocks along the rows. For blocks down the columns,
// a thread has sums of eight blocks, and fewer thread blocks are resident.
constexpr int kBlockErrorsResident = blocks_with(128);

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

template <typename Input, typename ScaleFormat, bool packed, bool decoded>
__global__ void __launch_bounds__(kThreads, kCopiesResident)
    copies_difference_kernel(CopiesArguments arguments) {
  __shared__ MergeShared<CopiesDifference> shared;
  copies_difference<Input, ScaleFormat, packed, decoded>(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_block_cast_statistics(const BlockCastArguments& given, const BlockCastKind& kind,
                                         const LaunchContext& context) {
  BlockCastArguments arguments = given;
  arguments.matrix.whole = is_whole(arguments.matrix);
  const CodedMatrix& codes = arguments.matrix.codes;
  const auto grid = static_cast<unsigned>(block_cast_grid(arguments.matrix));
  return dispatch_codes(codes.pairs, kind.element, kind.mode,
                        [&]<typename Input, typename ScaleFormat, CodePairs pairs>() {
                          return dispatch_high_precision(kind.x, [&]<typename X>() {
                            block_cast_statistics_kernel<Input, ScaleFormat, X, pairs>
                                <<<grid, kThreads, 0, context.stream>>>(arguments, context.gate);
                            return cudaGetLastError();
                          });
                        });
}

cudaError_t launch_block_cast_errors(const BlockErrorsArguments& given, const BlockCastKind& kind,
                                     const LaunchContext& context) {
  BlockErrorsArguments arguments = given;
  arguments.matrix.whole = is_whole(arguments.matrix);
  const BlockMatrix& x = arguments.matrix.x;
  if (is_empty(x)) return cudaSuccess;
  const std::int64_t rows =
      arguments.direction == BlockDirection::along_rows ? kDecodeRows : arguments.block;
  const std::int64_t threads = count_tiles(x.rows, rows) * count_tiles(x.columns, kColumnsOfThread);
  const unsigned grid = grid_for(count_tiles(threads, kThreads), kBlockErrorsResident, context);
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

cudaError_t launch_copies_difference(const CopiesArguments& given, FormatId element,
                                     ScalingMode mode, const LaunchContext& context) {
  CopiesArguments arguments = given;
  arguments.whole =
      is_whole(arguments.first) && arguments.columns % kColumnsOfThread == 0 &&
      (arguments.values != nullptr ? is_aligned(arguments.values, 16) : is_whole(arguments.second));
  const auto grid = static_cast<unsigned>(copies_grid(arguments.rows, arguments.columns));
  return dispatch_codes(arguments.first.pairs, element, mode,
                        [&]<typename Input, typename ScaleFormat, CodePairs pairs>() {
                          constexpr bool kPacked = pairs != CodePairs::none;
                          const auto launch = [&]<bool decoded>() {
                            copies_difference_kernel<Input, ScaleFormat, kPacked, decoded>
                                <<<grid, kThreads, 0, context.stream>>>(arguments);
                            return cudaGetLastError();
                          };
                          return arguments.values != nullptr ? launch.template operator()<true>()
                                                             : launch.template operator()<false>();
                        });
}

}  // namespace telens::cuda
