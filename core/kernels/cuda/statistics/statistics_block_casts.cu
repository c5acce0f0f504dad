#include "core/kernels/cuda/statistics/statistics_block_casts.cuh"

#include "core/kernels/cuda/statistics/cast_launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

// With 64 FP32 elements per thread, if bytes hold codes of two rows, two resident blocks do not
// leave enough registers. One resident block is faster than spilling.
template <typename X, CodePairs pairs>
constexpr int kResident =
    X::kId == FormatId::fp32&& pairs == CodePairs::down_columns ? 1 : kBlockCastResident;

template <typename Input, typename ScaleFormat, typename X, CodePairs pairs>
__global__ void __launch_bounds__(kThreads, kResident<X, pairs>)
    block_cast_statistics_kernel(BlockCastArguments arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ MergeShared<CastSums> shared;
  block_cast_statistics<Input, ScaleFormat, X, pairs>(arguments, GpuThread(), shared);
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

}  // namespace telens::cuda
